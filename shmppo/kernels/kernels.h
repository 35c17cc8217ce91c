/* Networks for training and acting: what Python passes, and in which order the numbers are added.
 *
 * A network is an array of layers that read and write rows of float32. `forward` runs them in order, `backward` in
 * reverse order. The rows are packed by time: a batch of sequences has active[0] rows of step 0, one per sequence, then
 * active[1] rows of step 1, and so on. Sequences are sorted by length, the longest first, so active never increases, and
 * row j of each step belongs to sequence j. There is no padding. Acting is a batch of one step.
 *
 * Order of summation, the same for each vector width, number of rows, and blocking:
 *   - An output of a matrix product is one chain of fused multiply-adds. It begins with the bias, 0, or the value to add
 *     to, and takes the inputs in ascending order; a recurrent layer takes those of x before those of the state.
 *   - The gradient of a weight is such a chain over the rows of a shard, in their order. That of a bias is a chain of
 *     additions over the same rows.
 *   - With bfloat16, a chain takes its inputs in pairs, the second of a pair first. Subnormal inputs and sums count as 0.
 *     This is what the instruction VDPBF16PS computes.
 *   - Attention divides a sequence after each 32 steps. Its products are chains over the units or over the steps, the
 *     oldest first, and those of the derivative of a key over the queries of a part. The parts are added in order.
 *   - A sum over the units of one row (layer normalization) has 16 partial sums, of the units i, i + 16, …, which are
 *     then added in pairs: 0 and 8, …, then 0 and 4, …, and so on.
 * All other operations are elementwise, and each is rounded as IEEE 754 says. So the result of a row depends only on the
 * row and its state, and is the same on each processor.
 *
 * c_source.py divides the headers at empty lines, so a function contains none.
 */
#ifndef SHMPPO_KERNELS_H
#define SHMPPO_KERNELS_H

#include <stdint.h>

/* Constants that Python finds by their names (see CONSTANTS in network.c). */
#define KINDS(X) X(INPUT) X(LINEAR) X(LAYER_NORM) X(LSTM) X(GRU) X(SCAN) X(DELAY) X(ATTEND) X(GATE)
#define ACTIVATIONS(X) X(IDENTITY) X(TANH) X(RELU)
#define RESULTS(X) X(SKIP) X(SET) X(ADD) /* what to do with a result: not needed, write, or add to the memory */
#define FUNCTIONS(X) X(OF_EXP) X(OF_TANH) X(OF_SIGMOID) X(OF_LOG) X(OF_SOFTPLUS)
#define ENUMERATOR(name) name,
enum { KINDS(ENUMERATOR) };
enum { ACTIVATIONS(ENUMERATOR) };
enum { RESULTS(ENUMERATOR) };
enum { FUNCTIONS(ENUMERATOR) };

typedef struct {
    float *at;
    int64_t stride; /* floats from one row to the next */
} Rows;

typedef struct {
    int64_t rows; /* sum of `active` */
    int32_t steps, sequences;
    const int32_t *active; /* [steps]; active[0] = sequences */
    const int64_t *index;  /* [rows], row r of an INPUT layer reads row index[r] of its x; NULL: row r */
    /* For `backward`: the rows belong to shards, whose gradients are sums over their own rows only. */
    int64_t shards, first_shard;
    const int64_t *order;    /* [rows]: the rows of the first shard in ascending order, then those of the next one */
    const int64_t *bounds;   /* [shards + 1]: shard s has the rows order[bounds[s]] … order[bounds[s + 1] − 1] */
    int64_t gradient_stride; /* floats from the gradients of a shard to those of the next */
} Batch;

typedef struct {
    int32_t kind, activation;
    int32_t inputs, outputs;
    int32_t bf16;         /* whether matrix products round their inputs to bfloat16 (LINEAR, LSTM, GRU) */
    int32_t into_y;       /* SET or ADD (LINEAR) */
    int32_t into_by_x;    /* SET or ADD (LAYER_NORM), or also SKIP (LINEAR, LSTM, GRU); the others always SET */
    int32_t writes_state; /* whether `forward` writes the new state to `state`; for batches of one step */
    int32_t trains;       /* whether `backward` will be called */
    int32_t heads;        /* ATTEND */
    Rows x, y;
    Rows by_x, by_y;    /* derivatives of the loss; `backward` overwrites by_y */
    Rows state[2];      /* [sequences, …]: before the first step. ATTEND, GATE: another input is part of it */
    Rows by_state;      /* derivatives with respect to that input; always SET */
    const float *weight, *bias, *state_weight, *state_bias; /* as torch has them: [outputs, inputs] */
    float *by_weight, *by_bias, *by_state_weight, *by_state_bias; /* gradients of shard 0 (SCAN: see scan_backward) */
    float *packed; /* [packed_size]: weights in the order in which products read them */
    float *memory; /* [memory_size]: what `forward` leaves for `backward`, and temporary values */
} Layer;

#endif
