/* A policy for $env, trained with shmppo for $iteration iterations. $file.c says how to compile it. */
#ifndef ${name}_H
#define ${name}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { /* an observation; vectors are flat, codes count from 0 */
$inputs
} ${name}_input;

typedef struct { /* the memory of the policy, one for each environment */
    float numbers[$states];
} ${name}_state;

typedef struct {
    $action_type action[$actions]; /* the most likely one */
    float params[$params]; /* of the distribution of actions */$value
} ${name}_output;
$binary
/* To be called at the start of each episode. */
void ${name}_reset(${name}_state *state);

/* Act, and change the state. Returns 0, or -1 if a number is not finite, or a code, a bit, or the mask is invalid. Then it
 * has changed nothing. */
int ${name}_step($arguments);

#ifdef __cplusplus
}
#endif
#endif
