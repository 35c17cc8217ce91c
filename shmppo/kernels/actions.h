/* What an exported policy needs besides layers: checks of its inputs, and most likely actions. */
#ifndef SHMPPO_ACTIONS_H
#define SHMPPO_ACTIONS_H

#include "vectors.h"

static int is_finite(float x) { return x - x == 0.0f; }

static double limit(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

static float tanh_of(float x) { return v_tanh(all(x))[0]; }

/* The mode of a beta distribution. */
static float mode_of(float x, float y) {
    float a = v_softplus(all(x))[0] + 1e-30f, b = v_softplus(all(y))[0] + 1e-30f;
    return a / (a + b);
}

/* The first index of the largest number. */
static int32_t largest(const float *x, int32_t count) {
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++) best = x[i] > x[best] ? i : best;
    return best;
}

#endif
