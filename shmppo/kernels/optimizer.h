/* Sums of gradients, and the steps of Adam. Every operation is elementwise, so any process can compute any part. */
#ifndef SHMPPO_OPTIMIZER_H
#define SHMPPO_OPTIMIZER_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* total ← the sum of rows of `count` floats, `stride` floats apart, added in their order. It adds blocks that fit the
 * cache. */
static void sum_of_rows(const float *restrict first, int64_t rows, int64_t stride, float *restrict total, int64_t count) {
    enum { BLOCK = 1024 };
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t end = begin + BLOCK < count ? begin + BLOCK : count;
        const float *second = rows > 1 ? first + stride : NULL;
        for (int64_t i = begin; i < end; i++) total[i] = second ? first[i] + second[i] : first[i];
        for (int64_t k = 2; k < rows; k++)
            for (int64_t i = begin; i < end; i++) total[i] += first[k * stride + i];
    }
}

/* A step of Adam for the gradient g after its multiplication by `factor` (Kingma and Ba, arXiv 1412.6980, algorithm 1):
 * m ← m + a·(g − m),  v ← (1 − b)·v + b·g²,  w ← w − rate·m / (√v·scale + eps)
 * Here a = 1 − β₁ and b = 1 − β₂. `rate` and `scale` contain the corrections of the moments' bias. */
static void step_of_adam(float *restrict w, const float *restrict gradient, float *restrict m, float *restrict v,
                         int64_t count, float factor, float rate, float scale, float eps) {
    const float a = 0.1f, b = 0.001f;
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * factor;
        m[i] += a * (g - m[i]);
        v[i] = (1.0f - b) * v[i] + b * (g * g);
        w[i] -= rate * m[i] / (sqrtf(v[i]) * scale + eps);
    }
}

#endif
