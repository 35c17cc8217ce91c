/* Recurrent layers. The rows of step t − 1 that belong to the sequences of step t are its first ones. */
#ifndef SHMPPO_RECURRENT_H
#define SHMPPO_RECURRENT_H

#include "kernels.h"
#include "layers.h"
#include "products.h"
#include "vectors.h"

/* What the recurrence of a layer reads before step t: results of the step before, or the state before the batch. */
INLINE Rows before_step(const Layer *l, const Batch *batch, int part, Rows results, int64_t begin, int t) {
    return t ? after(results, begin - batch->active[t - 1]) : l->state[part];
}

static void copy_rows(Rows from, int64_t rows, int64_t count, Rows to) {
    for (int64_t r = 0; r < rows; r++) memcpy(to.at + r * to.stride, from.at + r * from.stride, 4 * (size_t)count);
}

/* What `forward` of an LSTM or a GRU leaves for `backward`. */
typedef struct {
    Rows gates;      /* [rows, 4 H] */
    Rows c, tanh_c;  /* [rows, H], LSTM only */
    Rows h_before;   /* [rows, H], only for training, as what follows */
    Rows by_h, by_c; /* [sequences, H], derivatives from the step after; by_c: LSTM only */
    float *scratch;
} Memory;

/* Divide the memory of a layer among the arrays. Returns its size in floats. */
static int64_t recurrent_memory(const Layer *l, int64_t rows, int64_t sequences, Memory *m) {
    int64_t H = l->outputs, cells = l->kind == LSTM;
    int64_t trained_rows = l->trains ? rows : 0, trained_sequences = l->trains ? sequences : 0;
    Arena arena = {l->memory, 0};
    m->gates = (Rows){reserve(&arena, rows * 4 * H), 4 * H};
    m->c = (Rows){reserve(&arena, cells * rows * H), H};
    m->tanh_c = (Rows){reserve(&arena, cells * rows * H), H};
    m->h_before = (Rows){reserve(&arena, trained_rows * H), H};
    m->by_h = (Rows){reserve(&arena, trained_sequences * H), H};
    m->by_c = (Rows){reserve(&arena, cells * trained_sequences * H), H};
    m->scratch = reserve(&arena, scratch_size(l));
    return arena.used;
}

static Memory memory_of(const Layer *l, const Batch *batch) {
    Memory m;
    recurrent_memory(l, batch->rows, batch->sequences, &m);
    return m;
}

static int64_t lstm_packed(const Layer *l) {
    int64_t H = l->outputs, gates = 4 * H;
    int64_t forward = gates + panels(gates) * PANEL * (l->inputs + H);
    return forward + (l->trains ? (panels(H) + panels(l->inputs)) * PANEL * gates : 0);
}

static void lstm_load(const Layer *l) {
    int64_t H = l->outputs, gates = 4 * H;
    for (int64_t i = 0; i < gates; i++) l->packed[i] = l->bias[i] + l->state_bias[i];
    float *packed = pack(l->weight, 1, l->inputs, l->inputs, gates, l->bf16, l->packed + gates);
    packed = pack(l->state_weight, 1, H, H, gates, l->bf16, packed);
    if (!l->trains) return;
    packed = pack(l->state_weight, H, 1, gates, H, l->bf16, packed);
    pack(l->weight, l->inputs, 1, gates, l->inputs, l->bf16, packed);
}

/* i, f, g, o = σ, σ, tanh, σ of W x + U h + b;  c ← f·c + i·g;  h = o·tanh(c)   (Hochreiter and Schmidhuber 1997) */
static void lstm_forward(const Layer *l, const Batch *batch) {
    int64_t H = l->outputs, begin = 0;
    const float *packed_x = l->packed + 4 * H, *packed_h = packed_x + panels(4 * H) * PANEL * l->inputs;
    Memory m = memory_of(l, batch);
    multiply(l->x, batch->rows, packed_x, l->inputs, 4 * H, l->packed, 0, l->bf16, m.gates);
    for (int t = 0; t < batch->steps; begin += batch->active[t++]) {
        int64_t rows = batch->active[t];
        Rows h_before = before_step(l, batch, 0, l->y, begin, t), c_before = before_step(l, batch, 1, m.c, begin, t);
        Rows gates = after(m.gates, begin);
        if (l->trains) copy_rows(h_before, rows, H, after(m.h_before, begin));
        multiply(h_before, rows, packed_h, H, 4 * H, gates.at, gates.stride, l->bf16, gates);
        for (int64_t r = 0; r < rows; r++) {
            float *gate = gates.at + r * gates.stride, *c = m.c.at + (begin + r) * H;
            float *tanh_c = m.tanh_c.at + (begin + r) * H, *y = l->y.at + (begin + r) * l->y.stride;
            const float *before = c_before.at + r * c_before.stride;
            FOR_VECTORS(u, H) {
                int64_t count = H - u;
                Vector i = v_sigmoid(load_part(gate + u, count)), f = v_sigmoid(load_part(gate + H + u, count));
                Vector g = v_tanh(load_part(gate + 2 * H + u, count)), o = v_sigmoid(load_part(gate + 3 * H + u, count));
                Vector next = fma_(f, load_part(before + u, count), i * g), bounded = v_tanh(next);
                store_part(c + u, next, count);
                store_part(tanh_c + u, bounded, count);
                store_part(y + u, o * bounded, count);
                if (!l->trains) continue;
                store_part(gate + u, i, count);
                store_part(gate + H + u, f, count);
                store_part(gate + 2 * H + u, g, count);
                store_part(gate + 3 * H + u, o, count);
            }
        }
    }
    if (!l->writes_state) return;
    copy_rows(l->y, batch->rows, H, l->state[0]);
    copy_rows(m.c, batch->rows, H, l->state[1]);
}

static void lstm_backward(const Layer *l, const Batch *batch) {
    int64_t H = l->outputs, begin = batch->rows;
    const float *packed_h = l->packed + 4 * H + panels(4 * H) * PANEL * (l->inputs + H);
    Memory m = memory_of(l, batch);
    memset(m.by_h.at, 0, 8 * (size_t)(batch->sequences * H));
    for (int t = batch->steps - 1; t >= 0; t--) {
        int64_t rows = batch->active[t];
        begin -= rows;
        Rows c_before = before_step(l, batch, 1, m.c, begin, t), gates = after(m.gates, begin);
        for (int64_t r = 0; r < rows; r++) {
            float *gate = gates.at + r * gates.stride, *by_c = m.by_c.at + r * H;
            const float *by_y = l->by_y.at + (begin + r) * l->by_y.stride, *by_h = m.by_h.at + r * H;
            const float *before = c_before.at + r * c_before.stride, *tanh_c = m.tanh_c.at + (begin + r) * H;
            FOR_VECTORS(u, H) {
                int64_t count = H - u;
                Vector i = load_part(gate + u, count), f = load_part(gate + H + u, count);
                Vector g = load_part(gate + 2 * H + u, count), o = load_part(gate + 3 * H + u, count);
                Vector bounded = load_part(tanh_c + u, count), one = all(1.0f);
                Vector of_h = load_part(by_y + u, count) + load_part(by_h + u, count);
                Vector of_c = fma_(of_h * o, fma_(-bounded, bounded, one), load_part(by_c + u, count));
                store_part(gate + u, of_c * g * (i * (one - i)), count);
                store_part(gate + H + u, of_c * load_part(before + u, count) * (f * (one - f)), count);
                store_part(gate + 2 * H + u, of_c * i * fma_(-g, g, one), count);
                store_part(gate + 3 * H + u, of_h * bounded * (o * (one - o)), count);
                store_part(by_c + u, of_c * f, count);
            }
        }
        if (t) multiply(gates, rows, packed_h, 4 * H, H, NULL, 0, l->bf16, m.by_h);
    }
    gradients(batch, m.gates, l->x, 4 * H, l->inputs, l->bf16, l->by_weight, l->by_bias, m.scratch);
    gradients(batch, m.gates, m.h_before, 4 * H, H, l->bf16, l->by_state_weight, l->by_state_bias, m.scratch);
    if (l->into_by_x)
        multiply(m.gates, batch->rows, packed_h + panels(H) * PANEL * 4 * H, 4 * H, l->inputs,
                 l->into_by_x == ADD ? l->by_x.at : NULL, l->by_x.stride, l->bf16, l->by_x);
}

static int64_t gru_packed(const Layer *l) {
    int64_t H = l->outputs, I = l->inputs;
    int64_t forward = 3 * H + PANEL * ((panels(2 * H) + panels(H)) * I + panels(3 * H) * H);
    return forward + (l->trains ? PANEL * 3 * H * (panels(H) + panels(I)) : 0);
}

static void gru_load(const Layer *l) {
    int64_t H = l->outputs, I = l->inputs;
    for (int64_t i = 0; i < 3 * H; i++) l->packed[i] = l->bias[i] + (i < 2 * H ? l->state_bias[i] : 0.0f);
    float *packed = pack(l->weight, 1, I, I, 2 * H, l->bf16, l->packed + 3 * H);
    packed = pack(l->weight + 2 * H * I, 1, I, I, H, l->bf16, packed);
    packed = pack(l->state_weight, 1, H, H, 3 * H, l->bf16, packed);
    if (!l->trains) return;
    packed = pack(l->state_weight, H, 1, 3 * H, H, l->bf16, packed);
    packed = pack(l->weight, I, 1, 2 * H, I, l->bf16, packed);
    pack(l->weight + 2 * H * I, I, 1, H, I, l->bf16, packed);
}

/* r, z = σ of W x + U h + b;  n = tanh(W x + b + r·(U h + b'));  h ← n + z·(h − n)   (Cho et al. 2014, as torch.nn.GRU)
 * A row of `gates` has n, r, z, and the state's part of n, so the gates that read x are adjacent, and those that read h.
 * `backward` replaces them by the derivatives. */
static void gru_forward(const Layer *l, const Batch *batch) {
    int64_t H = l->outputs, begin = 0;
    const float *packed = l->packed + 3 * H, *packed_n = packed + panels(2 * H) * PANEL * l->inputs;
    const float *packed_h = packed_n + panels(H) * PANEL * l->inputs;
    Memory m = memory_of(l, batch);
    Rows of_x = {m.gates.at + H, 4 * H};
    multiply(l->x, batch->rows, packed, l->inputs, 2 * H, l->packed, 0, l->bf16, of_x);
    multiply(l->x, batch->rows, packed_n, l->inputs, H, l->packed + 2 * H, 0, l->bf16, m.gates);
    copy_rows((Rows){(float *)l->state_bias + 2 * H, 0}, batch->rows, H, (Rows){m.gates.at + 3 * H, 4 * H});
    for (int t = 0; t < batch->steps; begin += batch->active[t++]) {
        int64_t rows = batch->active[t];
        Rows h_before = before_step(l, batch, 0, l->y, begin, t), of_h = after(of_x, begin);
        if (l->trains) copy_rows(h_before, rows, H, after(m.h_before, begin));
        multiply(h_before, rows, packed_h, H, 3 * H, of_h.at, of_h.stride, l->bf16, of_h);
        for (int64_t j = 0; j < rows; j++) {
            float *gate = m.gates.at + (begin + j) * 4 * H, *y = l->y.at + (begin + j) * l->y.stride;
            const float *before = h_before.at + j * h_before.stride;
            FOR_VECTORS(u, H) {
                int64_t count = H - u;
                Vector r = v_sigmoid(load_part(gate + H + u, count)), z = v_sigmoid(load_part(gate + 2 * H + u, count));
                Vector n = v_tanh(fma_(r, load_part(gate + 3 * H + u, count), load_part(gate + u, count)));
                store_part(y + u, fma_(z, load_part(before + u, count) - n, n), count);
                if (!l->trains) continue;
                store_part(gate + u, n, count);
                store_part(gate + H + u, r, count);
                store_part(gate + 2 * H + u, z, count);
            }
        }
    }
    if (l->writes_state) copy_rows(l->y, batch->rows, H, l->state[0]);
}

/* The weights of the state, packed for `backward`. */
INLINE const float *gru_state_weights(const Layer *l) {
    int64_t H = l->outputs;
    return l->packed + 3 * H + PANEL * ((panels(2 * H) + panels(H)) * l->inputs + panels(3 * H) * H);
}

static void gru_backward(const Layer *l, const Batch *batch) {
    int64_t H = l->outputs, I = l->inputs, begin = batch->rows;
    const float *packed_h = gru_state_weights(l);
    const float *packed_x = packed_h + panels(H) * PANEL * 3 * H, *packed_n = packed_x + panels(I) * PANEL * 2 * H;
    Memory m = memory_of(l, batch);
    Rows of_x = {m.gates.at + H, 4 * H};
    memset(m.by_h.at, 0, 4 * (size_t)(batch->sequences * H));
    for (int t = batch->steps - 1; t >= 0; t--) {
        int64_t rows = batch->active[t];
        begin -= rows;
        for (int64_t j = 0; j < rows; j++) {
            float *gate = m.gates.at + (begin + j) * 4 * H, *by_h = m.by_h.at + j * H;
            const float *by_y = l->by_y.at + (begin + j) * l->by_y.stride, *before = m.h_before.at + (begin + j) * H;
            FOR_VECTORS(u, H) {
                int64_t count = H - u;
                Vector n = load_part(gate + u, count), r = load_part(gate + H + u, count), one = all(1.0f);
                Vector z = load_part(gate + 2 * H + u, count), of_state = load_part(gate + 3 * H + u, count);
                Vector total = load_part(by_y + u, count) + load_part(by_h + u, count);
                Vector of_n = total * (one - z) * fma_(-n, n, one);
                store_part(gate + u, of_n, count);
                store_part(gate + H + u, of_n * of_state * (r * (one - r)), count);
                store_part(gate + 2 * H + u, total * (load_part(before + u, count) - n) * (z * (one - z)), count);
                store_part(gate + 3 * H + u, of_n * r, count);
                store_part(by_h + u, total * z, count);
            }
        }
        if (t) multiply(after(of_x, begin), rows, packed_h, 3 * H, H, m.by_h.at, H, l->bf16, m.by_h);
    }
    gradients(batch, of_x, l->x, 2 * H, I, l->bf16, l->by_weight, l->by_bias, m.scratch);
    gradients(batch, m.gates, l->x, H, I, l->bf16, l->by_weight + 2 * H * I, l->by_bias + 2 * H, m.scratch);
    gradients(batch, of_x, m.h_before, 3 * H, H, l->bf16, l->by_state_weight, l->by_state_bias, m.scratch);
    if (!l->into_by_x) return;
    multiply(of_x, batch->rows, packed_x, 2 * H, I, l->into_by_x == ADD ? l->by_x.at : NULL, l->by_x.stride, l->bf16, l->by_x);
    multiply(m.gates, batch->rows, packed_n, H, I, l->by_x.at, l->by_x.stride, l->bf16, l->by_x);
}

#endif
