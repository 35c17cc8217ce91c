/* The layers of a network, for one kind of processor. Compiled once for each, with -DVARIANT=… */
#include <stddef.h>

#include "kernels.h"
#include "vectors.h"
#include "products.h"
#include "layers.h"
#include "recurrent.h"
#include "linear_recurrent.h"
#include "attention.h"

#define JOIN(a, b) a##_##b
#define NAME(function, variant) JOIN(function, variant)

/* Floats of `packed`. */
int64_t NAME(packed_size, VARIANT)(const Layer *l) {
    int64_t D = l->inputs ? l->outputs / l->inputs : 0;
    switch (l->kind) {
        case LINEAR: return PANEL * (panels(l->outputs) * l->inputs + (l->trains ? panels(l->inputs) * l->outputs : 0));
        case LSTM: return lstm_packed(l);
        case GRU:
        case GATE: return gru_packed(l);
        case DELAY: return 2 * PANEL * panels(D) * D;
        default: return 0;
    }
}

/* Floats of `memory` for batches of at most so many rows and sequences. */
int64_t NAME(memory_size, VARIANT)(const Layer *l, int64_t rows, int64_t sequences) {
    Attention attended;
    Memory recurrent;
    switch (l->kind) {
        case LINEAR: return scratch_size(l);
        case LAYER_NORM: return rows * (l->outputs + 1);
        case LSTM:
        case GRU: return recurrent_memory(l, rows, sequences, &recurrent);
        case GATE: return recurrent_memory(l, rows, rows, &recurrent);
        case ATTEND: return attention(l, rows, &attended);
        case SCAN: return (sequences + rows) * l->outputs;
        case DELAY: return sequences * l->outputs;
        default: return 0;
    }
}

/* What a kind of layer does. NULL: nothing. */
static const struct {
    void (*load)(const Layer *); /* pack the weights */
    void (*forward)(const Layer *, const Batch *), (*backward)(const Layer *, const Batch *);
} kinds[] = {
    [INPUT] = {NULL, input_forward, NULL},
    [LINEAR] = {linear_load, linear_forward, linear_backward},
    [LAYER_NORM] = {NULL, norm_forward, norm_backward},
    [LSTM] = {lstm_load, lstm_forward, lstm_backward},
    [GRU] = {gru_load, gru_forward, gru_backward},
    [SCAN] = {NULL, scan_forward, scan_backward},
    [DELAY] = {delay_load, delay_forward, delay_backward},
    [ATTEND] = {NULL, attend_forward, attend_backward},
    [GATE] = {gru_load, gate_forward, gate_backward},
};

/* Pack the weights. To be called whenever they have changed. */
void NAME(load_weights, VARIANT)(const Layer *layers, int count) {
    for (const Layer *l = layers; l < layers + count; l++)
        if (kinds[l->kind].load) kinds[l->kind].load(l);
}

void NAME(forward, VARIANT)(const Layer *layers, int count, const Batch *batch) {
    for (const Layer *l = layers; l < layers + count; l++) kinds[l->kind].forward(l, batch);
}

void NAME(backward, VARIANT)(const Layer *layers, int count, const Batch *batch) {
    for (const Layer *l = layers + count - 1; l >= layers; l--)
        if (kinds[l->kind].backward) kinds[l->kind].backward(l, batch);
}

/* The offset of each field of both structures and their sizes, in this order; −1 after the last one. Python compares them
 * with its own, to find a library of another version. */
int64_t NAME(structure_offset, VARIANT)(int i) {
#define OF_LAYER(field) offsetof(Layer, field)
#define OF_BATCH(field) offsetof(Batch, field)
    static const int64_t offsets[] = {
        OF_LAYER(kind), OF_LAYER(activation), OF_LAYER(inputs), OF_LAYER(outputs), OF_LAYER(bf16), OF_LAYER(into_y),
        OF_LAYER(into_by_x), OF_LAYER(writes_state), OF_LAYER(trains), OF_LAYER(heads), OF_LAYER(x), OF_LAYER(y),
        OF_LAYER(by_x), OF_LAYER(by_y), OF_LAYER(state), OF_LAYER(by_state), OF_LAYER(weight), OF_LAYER(bias),
        OF_LAYER(state_weight), OF_LAYER(state_bias), OF_LAYER(by_weight), OF_LAYER(by_bias),
        OF_LAYER(by_state_weight), OF_LAYER(by_state_bias), OF_LAYER(packed), OF_LAYER(memory), sizeof(Layer),
        OF_BATCH(rows), OF_BATCH(steps), OF_BATCH(sequences), OF_BATCH(active), OF_BATCH(index), OF_BATCH(shards),
        OF_BATCH(first_shard), OF_BATCH(order), OF_BATCH(bounds), OF_BATCH(gradient_stride), sizeof(Batch),
    };
    return i < (int)(sizeof offsets / sizeof *offsets) ? offsets[i] : -1;
}

/* The names of the constants of kernels.h, separated by spaces. Their values count from 0 within each list. */
const char *NAME(constants, VARIANT)(int list) {
#define WORD(name) #name " "
    static const char *const lists[] = {KINDS(WORD), ACTIVATIONS(WORD), RESULTS(WORD), FUNCTIONS(WORD)};
    return lists[list];
}

/* Whether this processor can execute the variant. */
int NAME(is_supported, VARIANT)(void) {
#if defined(__AVX512F__)
#if defined(__AVX512BF16__)
    if (!__builtin_cpu_supports("avx512bf16")) return 0;
#endif
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif defined(__AVX2__) && defined(__FMA__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

/* exp (0 below −87, infinite above 87), tanh, sigmoid, log, softplus of each number */
void NAME(apply_function, VARIANT)(int function, const float *x, float *y, int64_t count) {
    FOR_VECTORS(i, count) {
        Vector v = load_part(x + i, count - i), result;
        switch (function) {
            case OF_EXP: result = choose(v > 87.0f, all(INFINITY), choose(v < -87.0f, all(0.0f), v_exp(v))); break;
            case OF_TANH: result = v_tanh(v); break;
            case OF_SIGMOID: result = v_sigmoid(v); break;
            case OF_LOG: result = v_log(v); break;
            default: result = v_softplus(v);
        }
        store_part(y + i, result, count - i);
    }
}

/* total ← the sum of rows of `count` floats, `stride` floats apart, added in their order, in blocks that fit the cache. */
void NAME(add_rows, VARIANT)(const float *restrict first, int64_t rows, int64_t stride, float *restrict total,
                             int64_t count) {
    for (int64_t begin = 0; begin < count; begin += 1024) {
        int64_t end = begin + 1024 < count ? begin + 1024 : count;
        const float *second = rows > 1 ? first + stride : NULL;
        for (int64_t i = begin; i < end; i++) total[i] = second ? first[i] + second[i] : first[i];
        for (int64_t k = 2; k < rows; k++)
            for (int64_t i = begin; i < end; i++) total[i] += first[k * stride + i];
    }
}

/* A step of Adam for the gradient g, multiplied by `factor` (Kingma and Ba, arXiv 1412.6980, algorithm 1), elementwise:
 * m ← m + a·(g − m),  v ← (1 − b)·v + b·g²,  w ← w − rate·m / (√v·scale + eps)
 * Here a = 1 − β₁ and b = 1 − β₂. `rate` and `scale` contain the corrections of the moments' bias. */
void NAME(adam, VARIANT)(float *restrict w, const float *restrict gradient, float *restrict m, float *restrict v,
                         int64_t count, float factor, float a, float b, float rate, float scale, float eps) {
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * factor;
        m[i] += a * (g - m[i]);
        v[i] = (1.0f - b) * v[i] + b * (g * g);
        w[i] -= rate * m[i] / (sqrtf(v[i]) * scale + eps);
    }
}

/* The L2 norm of x. Element i is added to partial sum i mod PARTS. */
double NAME(norm, VARIANT)(const float *x, int64_t count) {
    double sums[PARTS] = {0}, sum = 0.0;
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS)
        for (int k = 0; k < PARTS; k++) sums[k] += (double)x[i + k] * x[i + k];
    for (int k = 0; i + k < count; k++) sums[k] += (double)x[i + k] * x[i + k];
    for (int k = 0; k < PARTS; k++) sum += sums[k];
    return sqrt(sum);
}
