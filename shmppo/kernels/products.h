/* Matrix products. The right factor is packed in panels of PANEL columns, [depth, PANEL] each, padded with zeros. A tile
 * of at most TILE_ROWS × PANEL results stays in registers while the inputs pass. A chain of more than BLOCK inputs is
 * computed in parts, and the sum of each part is stored and read again, which changes no bit.
 *
 * With bf16, a float contains a pair of bfloat16, and an odd last number is paired with 0. Functions whose argument
 * `bf16` comes from a constant are inlined, so that each product is compiled for floats and for pairs. */
#ifndef SHMPPO_PRODUCTS_H
#define SHMPPO_PRODUCTS_H

#include "kernels.h"
#include "vectors.h"

enum { PANEL = TILE_VECTORS * LANES, BLOCK = 256, ROW_BLOCK = 96, ROWS_AT_ONCE = 128, GROUP = 4 };

INLINE int64_t panels(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

/* Floats that `count` numbers take. */
INLINE int64_t floats(int64_t count, int bf16) { return bf16 ? (count + 1) / 2 : count; }

/* Pack B [depth, columns], where element (k, n) is at b[k·by_k + n·by_n]. Returns the end of the memory that B would take
 * without bf16, so that offsets do not depend on it. */
INLINE float *pack_as(int bf16, const float *b, int64_t by_k, int64_t by_n, int64_t depth, int64_t columns,
                      float *packed) {
    float *end = packed + panels(columns) * PANEL * depth;
    for (int64_t n = 0; n < columns; n += PANEL) {
        int64_t width = columns - n < PANEL ? columns - n : PANEL;
        for (int64_t k = 0; k < depth; k += 1 + bf16, packed += PANEL) {
            const float *row = b + k * by_k + n * by_n, *next = k + 1 < depth ? row + by_k : NULL;
            for (int64_t i = 0; i < width; i++, row += by_n)
                packed[i] = bf16 ? pair(*row, next ? next[i * by_n] : 0.0f) : *row;
            for (int64_t i = width; i < PANEL; i++) packed[i] = 0.0f;
        }
    }
    return end;
}

static float *pack(const float *b, int64_t by_k, int64_t by_n, int64_t depth, int64_t columns, int bf16, float *packed) {
    return bf16 ? pack_as(1, b, by_k, by_n, depth, columns, packed) : pack_as(0, b, by_k, by_n, depth, columns, packed);
}

/* The results of a tile: C = start + A·B, for one panel of B. `start` may be C itself, a bias (stride 0), or NULL for 0. */
INLINE void tile(int rows, int bf16, const float *a, int64_t by_row, int64_t by_k, const float *b, int64_t depth,
                 const float *start, int64_t start_stride, float *c, int64_t c_stride) {
    Vector sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            sum[m][v] = start ? load(start + m * start_stride + v * LANES) : (Vector){0};
    for (int64_t k = 0; k < depth; k++, b += PANEL) {
        Vector right[TILE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++) right[v] = load(b + v * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < rows; m++) {
            Vector left = all(a[m * by_row + k * by_k]);
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++)
                sum[m][v] = bf16 ? pair_fma(left, right[v], sum[m][v]) : fma_(left, right[v], sum[m][v]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++) store(c + m * c_stride + v * LANES, sum[m][v]);
}

/* One panel for at most TILE_ROWS rows, of which `width` columns exist. */
INLINE void part_of_panel(int64_t rows, int64_t width, int bf16, const float *a, int64_t by_row, int64_t by_k,
                          const float *b, int64_t depth, const float *start, int64_t start_stride, float *c,
                          int64_t c_stride) {
    float copy[TILE_ROWS * PANEL], *out = c;
    int64_t out_stride = c_stride;
    if (width < PANEL) { /* compute in a copy with all columns */
        out = copy, out_stride = PANEL;
        memset(copy, 0, sizeof copy);
        for (int64_t m = 0; start && m < rows; m++) memcpy(copy + m * PANEL, start + m * start_stride, 4 * (size_t)width);
        start = copy, start_stride = PANEL;
    }
    switch (rows) { /* `tile` with a constant number of rows, whose loops the compiler unrolls */
#define ROWS(n) case n: if (n <= TILE_ROWS) tile(n, bf16, a, by_row, by_k, b, depth, start, start_stride, out, out_stride); break;
        ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#undef ROWS
    }
    for (int64_t m = 0; out == copy && m < rows; m++) memcpy(c + m * c_stride, copy + m * PANEL, 4 * (size_t)width);
}

/* C [rows, columns] = start + A·B with packed B. `a` has the rows of A; the inputs of a row are adjacent. */
INLINE void multiply_as(int bf16, Rows a, int64_t rows, const float *packed, int64_t depth, int64_t columns,
                        const float *start, int64_t start_stride, Rows c) {
    float pairs[ROW_BLOCK * BLOCK / 2];
    int64_t k = 0;
    do { /* at least once, because a product without inputs is `start` */
        int64_t inputs = depth - k < BLOCK ? depth - k : (int64_t)BLOCK;
        for (int64_t first = 0; first < rows; first += ROW_BLOCK) {
            int64_t end = first + ROW_BLOCK < rows ? first + ROW_BLOCK : rows;
            Rows left = {a.at + first * a.stride + k, a.stride};
            if (bf16) {
                for (int64_t m = 0; m < end - first; m++)
                    for (int64_t i = 0; i < inputs; i += 2) {
                        const float *at = left.at + m * a.stride + i;
                        pairs[m * (BLOCK / 2) + i / 2] = pair(at[0], i + 1 < inputs ? at[1] : 0.0f);
                    }
                left = (Rows){pairs, BLOCK / 2};
            }
            for (int64_t n = 0; n < columns; n += PANEL) {
                int64_t tiles = (end - first + TILE_ROWS - 1) / TILE_ROWS;
                for (int64_t m = first, count; m < end; m += count, tiles--) {
                    count = (end - m + tiles - 1) / tiles; /* nearly equal, because few rows do not hide the latency */
                    float *out = c.at + m * c.stride + n;
                    const float *from = k ? out : start ? start + m * start_stride + n : NULL;
                    part_of_panel(count, columns - n, bf16, left.at + (m - first) * left.stride, left.stride, 1,
                                  packed + n * floats(depth, bf16) + floats(k, bf16) * PANEL, floats(inputs, bf16),
                                  from, k ? c.stride : start_stride, out, c.stride);
                }
            }
        }
        k += BLOCK;
    } while (k < depth);
}

static void multiply(Rows a, int64_t rows, const float *packed, int64_t depth, int64_t columns, const float *start,
                     int64_t start_stride, int bf16, Rows c) {
#ifdef WITHOUT_BF16 /* in exported policies, which may not have the memory for it */
    (void)bf16;
#else
    if (bf16) {
        multiply_as(1, a, rows, packed, depth, columns, start, start_stride, c);
        return;
    }
#endif
    multiply_as(0, a, rows, packed, depth, columns, start, start_stride, c);
}

/* Copy `count` numbers of row chosen[i], from `column` on. With bf16: pairs of the rows chosen[2i] and chosen[2i + 1]; the
 * second is 0 if there are only 2i + 1 rows. */
INLINE void take(Rows a, const int64_t *chosen, int64_t rows, int64_t i, int64_t column, int64_t count, int bf16,
                 float *to) {
    if (!bf16) {
        memcpy(to, a.at + chosen[i] * a.stride + column, 4 * (size_t)count);
        return;
    }
    const float *first = a.at + chosen[2 * i] * a.stride + column, *second = NULL;
    if (2 * i + 1 < rows) second = a.at + chosen[2 * i + 1] * a.stride + column;
    for (int64_t n = 0; n < count; n++) to[n] = pair(first[n], second ? second[n] : 0.0f);
}

/* C [m, n] = Aᵀ·B, summed over some rows of A [rows, m] and B [rows, n] in the order of `chosen` [count]. `scratch` has
 * room for ROWS_AT_ONCE rows of B, padded to whole panels. */
INLINE void multiply_transposed(int bf16, Rows a, Rows b, const int64_t *chosen, int64_t rows, int64_t m_count,
                                int64_t n_count, float *c, float *scratch) {
    if (!rows) memset(c, 0, 4 * (size_t)(m_count * n_count));
    float left[GROUP][ROWS_AT_ONCE * TILE_ROWS];
    for (int64_t k = 0; k < rows; k += ROWS_AT_ONCE, chosen += ROWS_AT_ONCE) {
        int64_t count = rows - k < ROWS_AT_ONCE ? rows - k : ROWS_AT_ONCE, depth = floats(count, bf16);
        for (int64_t i = 0; i < depth; i++)
            for (int64_t n = 0; n < n_count; n += PANEL) {
                float *packed = scratch + n * depth + i * PANEL;
                if (n_count - n >= PANEL) {
                    take(b, chosen, count, i, n, PANEL, bf16, packed);
                } else {
                    memset(packed, 0, 4 * PANEL);
                    take(b, chosen, count, i, n, n_count - n, bf16, packed);
                }
            }
        for (int64_t first = 0; first < m_count; first += GROUP * TILE_ROWS) {
            int64_t end = first + GROUP * TILE_ROWS < m_count ? first + GROUP * TILE_ROWS : m_count;
            for (int64_t i = 0; i < depth; i++) /* whole cache lines of A are read once */
                for (int64_t m = first; m < end; m += TILE_ROWS) {
                    float *to = left[(m - first) / TILE_ROWS] + i * TILE_ROWS;
                    if (end - m >= TILE_ROWS)
                        take(a, chosen, count, i, m, TILE_ROWS, bf16, to);
                    else
                        take(a, chosen, count, i, m, end - m, bf16, to);
                }
            for (int64_t n = 0; n < n_count; n += PANEL)
                for (int64_t m = first; m < end; m += TILE_ROWS) {
                    float *out = c + m * n_count + n;
                    part_of_panel(end - m < TILE_ROWS ? end - m : TILE_ROWS, n_count - n, bf16,
                                  left[(m - first) / TILE_ROWS], 1, TILE_ROWS, scratch + n * depth, depth,
                                  k ? out : NULL, n_count, out, n_count);
                }
        }
    }
}

/* The sum of each column over some rows, in the order of `chosen`. */
static void sum_rows(Rows a, const int64_t *chosen, int64_t rows, int64_t columns, float *sums) {
    memset(sums, 0, 4 * (size_t)columns);
    for (int64_t r = 0; r < rows; r++)
        FOR_VECTORS(i, columns) {
            int64_t count = columns - i;
            Vector v = load_part(a.at + chosen[r] * a.stride + i, count);
            store_part(sums + i, load_part(sums + i, count) + v, count);
        }
}

/* Write the gradients of a weight [m, n] and a bias [m], if it has one, for each shard of a batch: the sums over the
 * shard's rows of the derivatives `by_y` [rows, m] times the inputs x [rows, n], and of the derivatives. */
static void gradients(const Batch *batch, Rows by_y, Rows x, int64_t m, int64_t n, int bf16, float *weight, float *bias,
                      float *scratch) {
    for (int64_t s = 0; s < batch->shards; s++) {
        const int64_t *chosen = batch->order + batch->bounds[s], rows = batch->bounds[s + 1] - batch->bounds[s];
        int64_t offset = (batch->first_shard + s) * batch->gradient_stride;
        if (bf16)
            multiply_transposed(1, by_y, x, chosen, rows, m, n, weight + offset, scratch);
        else
            multiply_transposed(0, by_y, x, chosen, rows, m, n, weight + offset, scratch);
        if (bias) sum_rows(by_y, chosen, rows, m, bias + offset);
    }
}

#endif
