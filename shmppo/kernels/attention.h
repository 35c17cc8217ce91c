/* The layers of the core `gtrxl` alone: attention to the last steps, and gates. */
#ifndef SHMPPO_ATTENTION_H
#define SHMPPO_ATTENTION_H

#include "kernels.h"
#include "layers.h"
#include "products.h"
#include "recurrent.h"
#include "vectors.h"

enum { STEPS_AT_ONCE = 32 };

/* What attention computes for at most STEPS_AT_ONCE steps of a sequence. A step has a query for each of A heads, and
 * attends to the K steps before it and to itself. The keys are also the values. */
typedef struct {
    int64_t A, H, K, steps, seen, columns; /* seen = K + steps, columns = A·steps */
    float scale;                           /* of the queries: 1/√(H / A) */
    int64_t *row;                          /* of each step of the sequence */
    int64_t *ascending;                    /* 0, 1, …, seen − 1 */
    float *keys, *by_keys;                 /* [seen, H]: those of the K steps before, then those of the steps */
    float *weights, *by_weights;           /* [seen, columns] */
    float *queries, *results;              /* [columns, H] */
    float *packed, *scratch;
} Attention;

/* Divide the memory of a layer among the arrays. Returns its size in floats. */
static int64_t attention(const Layer *l, int64_t rows, Attention *a) {
    int64_t A = l->heads, H = l->outputs / A, K = l->inputs / A - H - 1;
    int64_t seen = K + STEPS_AT_ONCE, columns = A * STEPS_AT_ONCE;
    int64_t by_content = panels(columns) * PANEL * H, by_values = panels(H) * PANEL * columns;
    Arena arena = {l->memory, 0};
    *a = (Attention){.A = A, .H = H, .K = K, .scale = 1.0f / sqrtf((float)(H / A))};
    a->row = (int64_t *)reserve(&arena, 2 * rows);
    a->ascending = (int64_t *)reserve(&arena, 2 * seen);
    a->keys = reserve(&arena, seen * H);
    a->by_keys = reserve(&arena, seen * H);
    a->weights = reserve(&arena, seen * columns);
    a->by_weights = reserve(&arena, seen * columns);
    a->queries = reserve(&arena, columns * H);
    a->results = reserve(&arena, columns * H);
    a->packed = reserve(&arena, by_content > by_values ? by_content : by_values);
    a->scratch = reserve(&arena, ROWS_AT_ONCE * panels(H) * PANEL);
    for (int64_t i = 0; a->ascending && i < seen; i++) a->ascending[i] = i;
    return arena.used;
}

/* Find the rows of sequence j. Returns its length. */
static int64_t find_rows(const Batch *batch, int64_t j, Attention *a) {
    int64_t begin = 0, t = 0;
    for (; t < batch->steps && j < batch->active[t]; begin += batch->active[t++]) a->row[t] = begin + j;
    return t;
}

/* The row of step t of the sequence. */
INLINE float *row_of(const Attention *a, Rows rows, int64_t t) { return rows.at + a->row[t] * rows.stride; }

INLINE Rows keys_of(const Attention *a) { return (Rows){a->keys, a->H}; }

/* Prepare the next steps from `first` on: copy their keys, those of the K steps before, and their scaled queries.
 * Unless it is NULL, copy `copied` [rows, A·H] to `results`. */
static void take_steps(const Layer *l, int64_t j, int64_t first, int64_t length, const Rows *copied, Attention *a) {
    int64_t H = a->H, width = a->A * H;
    a->steps = length - first < STEPS_AT_ONCE ? length - first : STEPS_AT_ONCE;
    a->seen = a->K + a->steps, a->columns = a->A * a->steps;
    for (int64_t i = 0, t = first - a->K; i < a->seen; i++, t++) {
        const float *memory = l->state[0].at + j * l->state[0].stride + (a->K + t) * H;
        memcpy(a->keys + i * H, t < 0 ? memory : row_of(a, l->state[1], t), 4 * (size_t)H);
    }
    for (int64_t i = 0; i < a->steps; i++) {
        const float *query = row_of(a, l->x, first + i);
        for (int64_t u = 0; u < width; u++) a->queries[i * width + u] = query[u] * a->scale;
        if (copied) memcpy(a->results + i * width, row_of(a, *copied, first + i), 4 * (size_t)width);
    }
}

/* Copy the K + 1 numbers of each query, one per step of its window, from `rows` to `weights` or back. In a row they
 * follow A·H other numbers. */
static void move_windows(const Attention *a, int64_t first, float *weights, Rows rows, int to_rows) {
    if (!to_rows) memset(weights, 0, 4 * (size_t)(a->seen * a->columns));
    for (int64_t i = 0; i < a->steps; i++)
        for (int64_t h = 0; h < a->A; h++) {
            float *of_row = row_of(a, rows, first + i) + a->A * a->H + h * (a->K + 1);
            float *weight = weights + i * a->columns + i * a->A + h;
            for (int64_t d = 0; d <= a->K; d++)
                if (to_rows)
                    of_row[d] = weight[d * a->columns];
                else
                    weight[d * a->columns] = of_row[d];
        }
}

/* Softmax over the steps of each query's window. Before the first step there are only `known` steps. */
static void softmax_windows(Attention *a, int64_t known) {
    FOR_VECTORS(c, a->columns) {
        int64_t count = a->columns - c;
        Bits low, high;
        Vector largest = all(-INFINITY), sum = {0};
        for (int64_t lane = 0; lane < LANES; lane++) {
            int64_t i = (c + lane) / a->A, there = known + i + 1 < a->K + 1 ? known + i + 1 : a->K + 1;
            high[lane] = (int32_t)(i + a->K), low[lane] = (int32_t)(i + a->K + 1 - there);
        }
        for (int32_t n = 0; n < a->seen; n++) {
            Vector v = load_part(a->weights + n * a->columns + c, count);
            largest = choose((low <= n) & (n <= high) & (v > largest), v, largest);
        }
        for (int32_t n = 0; n < a->seen; n++) {
            float *at = a->weights + n * a->columns + c;
            Vector v = choose((low <= n) & (n <= high), v_exp(load_part(at, count) - largest), all(0.0f));
            sum += v;
            store_part(at, v, count);
        }
        for (int32_t n = 0; n < a->seen; n++) {
            float *at = a->weights + n * a->columns + c;
            store_part(at, load_part(at, count) / sum, count);
        }
    }
}

/* results = weightsᵀ·keys */
static void sum_keys(Attention *a, float *weights) {
    multiply_transposed(0, (Rows){weights, a->columns}, keys_of(a), a->ascending, a->seen, a->columns, a->H, a->results,
                        a->scratch);
}

/* y = Σ w·n over the window with w = softmax(q·n / √(H / A) + b), for each head (see models/gtrxl.py). x has the
 * queries q of the heads, [A, H], and b for each step of their windows, [A, K + 1], the oldest first. state[1] is n
 * [rows, H]. A row of state[0] has n of the K steps before, and their number. For `backward`, w replaces b. */
static void attend_forward(const Layer *l, const Batch *batch) {
    Attention a;
    attention(l, batch->rows, &a);
    for (int64_t j = 0; j < batch->sequences; j++) {
        float *state = l->state[0].at + j * l->state[0].stride, *known = state + a.K * a.H;
        int64_t length = find_rows(batch, j, &a);
        for (int64_t first = 0; first < length; first += a.steps) {
            take_steps(l, j, first, length, NULL, &a);
            move_windows(&a, first, a.weights, l->x, 0);
            pack(a.queries, 1, a.H, a.H, a.columns, 0, a.packed);
            multiply(keys_of(&a), a.seen, a.packed, a.H, a.columns, a.weights, a.columns, 0, (Rows){a.weights, a.columns});
            softmax_windows(&a, (int64_t)*known + first);
            sum_keys(&a, a.weights);
            for (int64_t i = 0; i < a.steps; i++)
                memcpy(row_of(&a, l->y, first + i), a.results + i * l->outputs, 4 * (size_t)l->outputs);
            if (l->trains) move_windows(&a, first, a.weights, l->x, 1);
        }
        if (!l->writes_state) continue;
        memmove(state, state + a.H, 4 * (size_t)((a.K - 1) * a.H));
        memcpy(known - a.H, a.keys + a.K * a.H, 4 * (size_t)a.H);
        *known = *known < (float)a.K ? *known + 1.0f : *known;
    }
}

static void attend_backward(const Layer *l, const Batch *batch) {
    Attention a;
    attention(l, batch->rows, &a);
    Rows by_n = l->by_state;
    for (int64_t r = 0; r < batch->rows; r++) memset(by_n.at + r * by_n.stride, 0, 4 * (size_t)a.H);
    for (int64_t j = 0; j < batch->sequences; j++)
        for (int64_t first = 0, length = find_rows(batch, j, &a); first < length; first += a.steps) {
            take_steps(l, j, first, length, &l->by_y, &a);
            move_windows(&a, first, a.weights, l->x, 0);
            pack(a.results, 1, a.H, a.H, a.columns, 0, a.packed);
            multiply(keys_of(&a), a.seen, a.packed, a.H, a.columns, NULL, 0, 0, (Rows){a.by_weights, a.columns});
            FOR_VECTORS(c, a.columns) {
                int64_t count = a.columns - c;
                Vector sum = {0};
                for (int64_t n = 0, at = c; n < a.seen; n++, at += a.columns)
                    sum = fma_(load_part(a.weights + at, count), load_part(a.by_weights + at, count), sum);
                for (int64_t n = 0, at = c; n < a.seen; n++, at += a.columns) {
                    Vector v = (load_part(a.by_weights + at, count) - sum) * load_part(a.weights + at, count);
                    store_part(a.by_weights + at, v, count);
                }
            }
            Rows weights = {a.weights, a.columns}, by_weights = {a.by_weights, a.columns}, by_keys = {a.by_keys, a.H};
            pack(a.results, a.H, 1, a.columns, a.H, 0, a.packed);
            multiply(weights, a.seen, a.packed, a.columns, a.H, NULL, 0, 0, by_keys);
            pack(a.queries, a.H, 1, a.columns, a.H, 0, a.packed);
            multiply(by_weights, a.seen, a.packed, a.columns, a.H, a.by_keys, a.H, 0, by_keys);
            for (int64_t t = first < a.K ? 0 : first - a.K; t < first + a.steps; t++) {
                const float *by_key = a.by_keys + (t - first + a.K) * a.H;
                for (int64_t u = 0; u < a.H; u++) by_n.at[a.row[t] * by_n.stride + u] += by_key[u];
            }
            sum_keys(&a, a.by_weights);
            for (int64_t i = 0; i < a.steps; i++) {
                float *by_query = row_of(&a, l->by_x, first + i);
                for (int64_t u = 0; u < l->outputs; u++) by_query[u] = a.results[i * l->outputs + u] * a.scale;
            }
            move_windows(&a, first, a.by_weights, l->by_x, 1);
        }
}

/* A gate is one step of a GRU for each row. The state of the row is the same row of another output, state[0]. */
static Batch one_step(const Batch *batch, int32_t *active) {
    Batch one = *batch;
    *active = one.sequences = (int32_t)batch->rows;
    one.steps = 1, one.active = active;
    return one;
}

static void gate_forward(const Layer *l, const Batch *batch) {
    int32_t active;
    Batch one = one_step(batch, &active);
    gru_forward(l, &one);
}

static void gate_backward(const Layer *l, const Batch *batch) {
    int32_t active;
    Batch one = one_step(batch, &active);
    gru_backward(l, &one);
    Memory m = memory_of(l, &one);
    multiply((Rows){m.gates.at + l->outputs, 4 * l->outputs}, one.rows, gru_state_weights(l), 3 * l->outputs, l->outputs,
             m.by_h.at, l->outputs, l->bf16, l->by_state);
}

#endif
