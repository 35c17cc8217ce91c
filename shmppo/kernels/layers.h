/* Layers without a recurrent state: input, linear, layer normalization. */
#ifndef SHMPPO_LAYERS_H
#define SHMPPO_LAYERS_H

#include "kernels.h"
#include "products.h"
#include "vectors.h"

INLINE Rows after(Rows rows, int64_t count) { return (Rows){rows.at + count * rows.stride, rows.stride}; }

/* The memory of a layer, divided among arrays. Without memory, only its size is counted. */
typedef struct {
    float *memory;
    int64_t used;
} Arena;

INLINE float *reserve(Arena *arena, int64_t count) {
    float *begin = arena->memory ? arena->memory + arena->used : NULL;
    arena->used += count;
    return begin;
}

/* Floats that `gradients` needs. */
INLINE int64_t scratch_size(const Layer *l) {
    int64_t widest = l->inputs > l->outputs ? l->inputs : l->outputs;
    return l->trains ? ROWS_AT_ONCE * panels(widest) * PANEL : 0;
}

/* Normalize observations: (x − mean)·scale, at least −10 and at most 10. `weight` is the mean, `bias` the scale. */
static void input_forward(const Layer *l, const Batch *batch) {
    for (int64_t r = 0; r < batch->rows; r++) {
        const float *x = l->x.at + (batch->index ? batch->index[r] : r) * l->x.stride;
        float *y = l->y.at + r * l->y.stride;
        FOR_VECTORS(i, l->inputs) {
            int64_t count = l->inputs - i;
            Vector v = load_part(x + i, count);
            if (l->weight) {
                v = (v - load_part(l->weight + i, count)) * load_part(l->bias + i, count);
                v = at_least(at_most(v, 10.0f), -10.0f);
            }
            store_part(y + i, v, count);
        }
    }
}

static void activate_rows(const Layer *l, int64_t rows) {
    for (int64_t r = 0; l->activation && r < rows; r++) {
        float *y = l->y.at + r * l->y.stride;
        FOR_VECTORS(i, l->outputs) store_part(y + i, activate(load_part(y + i, l->outputs - i), l->activation), l->outputs - i);
    }
}

/* Multiply by_y by the derivative of the activation. */
static void activate_rows_backward(const Layer *l, int64_t rows) {
    for (int64_t r = 0; l->activation && r < rows; r++) {
        float *by_y = l->by_y.at + r * l->by_y.stride;
        const float *y = l->y.at + r * l->y.stride;
        FOR_VECTORS(i, l->outputs) {
            int64_t count = l->outputs - i;
            Vector v = load_part(by_y + i, count) * slope(load_part(y + i, count), l->activation);
            store_part(by_y + i, v, count);
        }
    }
}

static void linear_load(const Layer *l) {
    float *backward = pack(l->weight, 1, l->inputs, l->inputs, l->outputs, l->bf16, l->packed);
    if (l->trains && l->into_by_x) pack(l->weight, l->inputs, 1, l->outputs, l->inputs, l->bf16, backward);
}

static void linear_forward(const Layer *l, const Batch *batch) {
    const float *start = l->into_y == ADD ? l->y.at : l->bias;
    multiply(l->x, batch->rows, l->packed, l->inputs, l->outputs, start, l->into_y == ADD ? l->y.stride : 0, l->bf16, l->y);
    activate_rows(l, batch->rows);
}

static void linear_backward(const Layer *l, const Batch *batch) {
    activate_rows_backward(l, batch->rows);
    gradients(batch, l->by_y, l->x, l->outputs, l->inputs, l->bf16, l->by_weight, l->by_bias, l->memory);
    if (l->into_by_x)
        multiply(l->by_y, batch->rows, l->packed + panels(l->outputs) * PANEL * l->inputs, l->outputs, l->inputs,
                 l->into_by_x == ADD ? l->by_x.at : NULL, l->by_x.stride, l->bf16, l->by_x);
}

/* The sum of a row's products a·b in the order that kernels.h states; b NULL: of a. */
static float sum_units(const float *a, const float *b, int64_t count) {
    Vector sums[PARTS / LANES] = {0};
    FOR_VECTORS(i, count) { /* the missing units of the last vector are 0 */
        Vector *sum = &sums[i / LANES % (PARTS / LANES)], v = load_part(a + i, count - i);
        *sum = b ? fma_(v, load_part(b + i, count - i), *sum) : *sum + v;
    }
    float part[PARTS];
    memcpy(part, sums, sizeof part);
    for (int half = PARTS / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

/* y = (x − mean)/√(variance + 1e-5) over the units of a row (Ba et al. 2016, without the gain and bias). */
static void norm_forward(const Layer *l, const Batch *batch) {
    int64_t width = l->outputs;
    for (int64_t r = 0; r < batch->rows; r++) {
        const float *x = l->x.at + r * l->x.stride;
        float *hat = l->memory + r * (width + 1); /* y, and 1/√ */
        float mean = sum_units(x, NULL, width) / (float)width;
        for (int64_t i = 0; i < width; i++) hat[i] = x[i] - mean;
        float inverse = 1.0f / sqrtf(sum_units(hat, hat, width) / (float)width + 1e-5f);
        hat[width] = inverse;
        for (int64_t i = 0; i < width; i++) hat[i] *= inverse;
        memcpy(l->y.at + r * l->y.stride, hat, 4 * (size_t)width);
    }
}

static void norm_backward(const Layer *l, const Batch *batch) {
    int64_t width = l->outputs;
    for (int64_t r = 0; r < batch->rows; r++) {
        const float *hat = l->memory + r * (width + 1), *by_y = l->by_y.at + r * l->by_y.stride;
        float *by_x = l->by_x.at + r * l->by_x.stride;
        float mean = sum_units(by_y, NULL, width) / (float)width;
        float slope = sum_units(by_y, hat, width) / (float)width;
        for (int64_t i = 0; i < width; i++) {
            float value = (by_y[i] - fma_of_one(hat[i], slope, mean)) * hat[width];
            by_x[i] = l->into_by_x == ADD ? by_x[i] + value : value;
        }
    }
}

#endif
