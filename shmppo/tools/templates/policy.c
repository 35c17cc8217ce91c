/* A policy for $env, trained with shmppo. Compile it without contractions, or its bits may change:
 *     cc -std=c99 -O2 -ffp-contract=off -c $file.c
 * With -DTEST, it is a program that compares its results with those of shmppo, bit for bit. */
#include "$file.h"

$kernels
$constants
void ${name}_reset(${name}_state *state) { memset(state, 0, sizeof *state); }

int ${name}_step($arguments) {
    const int32_t one = 1;
    float m[$scratch]; /* results of layers */
    Batch batch;
    Layer l;
    memset(&batch, 0, sizeof batch);
    batch.rows = batch.steps = batch.sequences = 1;
    batch.active = &one;
    for (int i = 0; i < $states; i++)
        if (!is_finite(state->numbers[i])) return -1;
    $statements
    return 0;
}

#ifdef TEST
#include <stdio.h>

static const struct {
    ${name}_input in;
    ${name}_output out;
} steps[$test_count] = {
    $test_steps
};

int main(void) {
    ${name}_state state;
    ${name}_output out;
    $test_read
    ${name}_reset(&state);
    for (int t = 0; t < $test_count; t++) {
        if (${name}_step($test_arguments) || $test_differs) {
            printf("step %d differs\n", t);
            return 1;
        }
    }
    puts("$test_count steps have the same bits");
    return 0;
}
#endif
