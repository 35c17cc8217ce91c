/* A policy for minigrid:MiniGrid-MemoryS9-v0, trained with shmppo for 489 iterations. policy.c says how to compile it. */
#ifndef policy_H
#define policy_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { /* an observation; vectors are flat, codes count from 0 */
    float obs[980];
} policy_input;

typedef struct { /* the memory of the policy, one for each environment */
    float numbers[256];
} policy_state;

typedef struct {
    int32_t action[1]; /* the most likely one */
    float params[3]; /* of the distribution of actions */
    float value;
} policy_output;

/* To be called at the start of each episode. */
void policy_reset(policy_state *state);

/* Act, and change the state. Returns 0, or -1 if a number is not finite, or a code, a bit, or the mask is invalid. Then it
 * has changed nothing. */
int policy_step(policy_state *state, const policy_input *in, policy_output *out);

#ifdef __cplusplus
}
#endif
#endif
