/* Linear recurrences: of the cores `lru` and `lmu`, whose other parts are linear layers. */
#ifndef SHMPPO_LINEAR_RECURRENT_H
#define SHMPPO_LINEAR_RECURRENT_H

#include "kernels.h"
#include "layers.h"
#include "products.h"
#include "recurrent.h"
#include "vectors.h"

/* Each unit has a complex number h ← λ·h + γ·x. x and y have the real parts of H units, then the imaginary parts.
 * `weight` has Re λ, Im λ, and γ, [H] each; state[0] and state[1] are the real and the imaginary parts. */
static void scan_forward(const Layer *l, const Batch *batch) {
    int64_t H = l->outputs / 2, begin = 0;
    const float *re = l->weight, *im = re + H, *gamma = im + H;
    for (int t = 0; t < batch->steps; begin += batch->active[t++]) {
        Rows real = before_step(l, batch, 0, l->y, begin, t);
        Rows imaginary = t ? (Rows){real.at + H, real.stride} : l->state[1];
        for (int64_t j = 0; j < batch->active[t]; j++) {
            const float *x = l->x.at + (begin + j) * l->x.stride;
            const float *a = real.at + j * real.stride, *b = imaginary.at + j * imaginary.stride;
            float *y = l->y.at + (begin + j) * l->y.stride;
            FOR_VECTORS(u, H) {
                int64_t count = H - u;
                Vector va = load_part(a + u, count), vb = load_part(b + u, count), scale = load_part(gamma + u, count);
                Vector vre = load_part(re + u, count), vim = load_part(im + u, count);
                store_part(y + u, fma_(-vim, vb, fma_(vre, va, scale * load_part(x + u, count))), count);
                store_part(y + H + u, fma_(vre, vb, fma_(vim, va, scale * load_part(x + H + u, count))), count);
            }
        }
    }
    if (!l->writes_state) return;
    copy_rows(l->y, batch->rows, H, l->state[0]);
    copy_rows((Rows){l->y.at + H, l->y.stride}, batch->rows, H, l->state[1]);
}

/* by_weight [shards of the batch, 3 H]: the derivatives with respect to Re λ, Im λ, and γ. */
static void scan_backward(const Layer *l, const Batch *batch) {
    int64_t H = l->outputs / 2, begin = batch->rows;
    const float *re = l->weight, *im = re + H, *gamma = im + H;
    float *by_h = l->memory, *h_before = by_h + batch->sequences * 2 * H; /* [sequences, 2 H] and [rows, 2 H] */
    memset(by_h, 0, 8 * (size_t)(batch->sequences * H));
    for (int t = batch->steps - 1; t >= 0; t--) {
        int64_t rows = batch->active[t];
        begin -= rows;
        Rows real = before_step(l, batch, 0, l->y, begin, t), before = {h_before + begin * 2 * H, 2 * H};
        copy_rows(real, rows, H, before);
        copy_rows(t ? (Rows){real.at + H, real.stride} : l->state[1], rows, H, (Rows){before.at + H, 2 * H});
        for (int64_t j = 0; j < rows; j++) {
            float *by_y = l->by_y.at + (begin + j) * l->by_y.stride, *later = by_h + j * 2 * H;
            float *by_x = l->by_x.at + (begin + j) * l->by_x.stride;
            FOR_VECTORS(u, H) {
                int64_t count = H - u;
                Vector vre = load_part(re + u, count), vim = load_part(im + u, count);
                Vector ga = load_part(by_y + u, count) + load_part(later + u, count);
                Vector gb = load_part(by_y + H + u, count) + load_part(later + H + u, count);
                store_part(by_y + u, ga, count);
                store_part(by_y + H + u, gb, count);
                store_part(later + u, fma_(vim, gb, vre * ga), count);
                store_part(later + H + u, fma_(-vim, ga, vre * gb), count);
                store_part(by_x + u, load_part(gamma + u, count) * ga, count);
                store_part(by_x + H + u, load_part(gamma + u, count) * gb, count);
            }
        }
    }
    for (int64_t s = 0; s < batch->shards; s++)
        FOR_VECTORS(u, H) {
            int64_t count = H - u;
            Vector by_re = {0}, by_im = {0}, by_gamma = {0};
            for (int64_t i = batch->bounds[s]; i < batch->bounds[s + 1]; i++) {
                int64_t row = batch->order[i];
                const float *x = l->x.at + row * l->x.stride + u, *before = h_before + row * 2 * H + u;
                const float *by_y = l->by_y.at + row * l->by_y.stride + u;
                Vector a = load_part(before, count), b = load_part(before + H, count);
                Vector ga = load_part(by_y, count), gb = load_part(by_y + H, count);
                by_re = fma_(gb, b, fma_(ga, a, by_re));
                by_im = fma_(gb, a, fma_(-ga, b, by_im));
                by_gamma = fma_(gb, load_part(x + H, count), fma_(ga, load_part(x, count), by_gamma));
            }
            float *out = l->by_weight + s * 3 * H + u;
            store_part(out, by_re, count);
            store_part(out + H, by_im, count);
            store_part(out + 2 * H, by_gamma, count);
        }
}

/* Each of K signals x has a memory m ← A m + B x of D numbers. `weight` is A [D, D], `bias` is B [D]; both are constant.
 * The rows of y are adjacent, with the K memories side by side. */
static void delay_load(const Layer *l) {
    int64_t D = l->outputs / l->inputs;
    float *packed = pack(l->weight, 1, D, D, D, 0, l->packed);
    if (l->trains) pack(l->weight, D, 1, D, D, 0, packed);
}

static void delay_forward(const Layer *l, const Batch *batch) {
    int64_t K = l->inputs, width = l->outputs, D = width / K, begin = 0;
    copy_rows(l->state[0], batch->sequences, width, (Rows){l->memory, width});
    for (int t = 0; t < batch->steps; begin += batch->active[t++]) {
        int64_t rows = batch->active[t];
        float *y = l->y.at + begin * width;
        for (int64_t r = 0; r < rows * K; r++) {
            float x = l->x.at[(begin + r / K) * l->x.stride + r % K];
            for (int64_t d = 0; d < D; d++) y[r * D + d] = x * l->bias[d];
        }
        const float *m = t ? y - batch->active[t - 1] * width : l->memory;
        multiply((Rows){(float *)m, D}, rows * K, l->packed, D, D, y, D, 0, (Rows){y, D});
    }
    if (l->writes_state) copy_rows(l->y, batch->rows, width, l->state[0]);
}

static void delay_backward(const Layer *l, const Batch *batch) {
    int64_t K = l->inputs, width = l->outputs, D = width / K, begin = batch->rows;
    memset(l->memory, 0, 4 * (size_t)(batch->sequences * width));
    for (int t = batch->steps - 1; t >= 0; t--) {
        int64_t rows = batch->active[t];
        begin -= rows;
        float *by_y = l->by_y.at + begin * width;
        for (int64_t i = 0; i < rows * width; i++) by_y[i] += l->memory[i];
        for (int64_t r = 0; r < rows * K; r++)
            l->by_x.at[(begin + r / K) * l->by_x.stride + r % K] = sum_units(by_y + r * D, l->bias, D);
        if (t) multiply((Rows){by_y, D}, rows * K, l->packed + panels(D) * PANEL * D, D, D, NULL, 0, 0, (Rows){l->memory, D});
    }
}

#endif
