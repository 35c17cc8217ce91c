/* The layers of a network, for one kind of processor. Compiled once for each, with -DVARIANT=… */
#include "kernels.h"
#include "vectors.h"
#include "products.h"
#include "layers.h"
#include "recurrent.h"
#include "linear_recurrent.h"

#define JOIN(a, b) a##_##b
#define NAME(function, variant) JOIN(function, variant)

/* Floats of `packed`. */
int64_t NAME(packed_size, VARIANT)(const Layer *l) {
    int64_t D = l->inputs ? l->outputs / l->inputs : 0;
    switch (l->kind) {
        case LINEAR: return PANEL * (panels(l->outputs) * l->inputs + panels(l->inputs) * l->outputs);
        case LSTM: return lstm_packed(l);
        case GRU: return gru_packed(l);
        case DELAY: return 2 * PANEL * panels(D) * D;
        default: return 0;
    }
}

/* Floats of `memory` for batches of at most so many rows and sequences. */
int64_t NAME(memory_size, VARIANT)(const Layer *l, int64_t rows, int64_t sequences) {
    int64_t widest = l->inputs > l->outputs ? l->inputs : l->outputs, scratch = l->trains ? ROWS_AT_ONCE * panels(widest) * PANEL : 0;
    switch (l->kind) {
        case LINEAR: return scratch;
        case LAYER_NORM: return rows * (l->outputs + 1);
        case LSTM: return (7 * rows + 2 * sequences) * l->outputs + scratch;
        case GRU: return (5 * rows + sequences) * l->outputs + scratch;
        case SCAN: return (sequences + rows) * l->outputs;
        case DELAY: return sequences * l->outputs;
        default: return 0;
    }
}

/* Pack the weights, after they have changed. */
void NAME(load_weights, VARIANT)(const Layer *layers, int count) {
    for (const Layer *l = layers; l < layers + count; l++) switch (l->kind) {
            case LINEAR: linear_load(l); break;
            case LSTM: lstm_load(l); break;
            case GRU: gru_load(l); break;
            case DELAY: delay_load(l); break;
        }
}

void NAME(forward, VARIANT)(const Layer *layers, int count, const Batch *batch) {
    for (const Layer *l = layers; l < layers + count; l++) switch (l->kind) {
            case INPUT: input_forward(l, batch); break;
            case LINEAR: linear_forward(l, batch); break;
            case LAYER_NORM: norm_forward(l, batch); break;
            case LSTM: lstm_forward(l, batch); break;
            case GRU: gru_forward(l, batch); break;
            case SCAN: scan_forward(l, batch); break;
            case DELAY: delay_forward(l, batch); break;
        }
}

void NAME(backward, VARIANT)(const Layer *layers, int count, const Batch *batch) {
    for (const Layer *l = layers + count - 1; l >= layers; l--) switch (l->kind) {
            case LINEAR: linear_backward(l, batch); break;
            case LAYER_NORM: norm_backward(l, batch); break;
            case LSTM: lstm_backward(l, batch); break;
            case GRU: gru_backward(l, batch); break;
            case SCAN: scan_backward(l, batch); break;
            case DELAY: delay_backward(l, batch); break;
        }
}

/* The elementwise functions, for tests: exp, tanh, sigmoid. */
void NAME(apply_function, VARIANT)(int function, const float *x, float *y, int64_t count) {
    FOR_VECTORS(i, count) {
        Vector v = load_part(x + i, count - i);
        store_part(y + i, function == 0 ? v_exp(v) : function == 1 ? v_tanh(v) : v_sigmoid(v), count - i);
    }
}
