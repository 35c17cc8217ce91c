/* Matrix products. The right factor is packed in panels of PANEL columns, [depth, PANEL] each, padded with zeros. A tile
 * of at most TILE_ROWS × PANEL results stays in registers while the inputs pass. Longer chains are divided into BLOCK
 * inputs, whose partial sums are stored and read again, which changes no bit. */
enum { PANEL = TILE_VECTORS * LANES, BLOCK = 256, ROW_BLOCK = 96, ROWS_AT_ONCE = 128, GROUP = 4 };

INLINE int64_t panels(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

/* Pack B [depth, columns], where element (k, n) is at b[k·by_k + n·by_n]. Returns the end of the packed memory. */
static float *pack(const float *b, int64_t by_k, int64_t by_n, int64_t depth, int64_t columns, float *packed) {
    for (int64_t n = 0; n < columns; n += PANEL) {
        int64_t width = columns - n < PANEL ? columns - n : PANEL;
        for (int64_t k = 0; k < depth; k++, packed += PANEL) {
            for (int64_t i = 0; i < width; i++) packed[i] = b[k * by_k + (n + i) * by_n];
            for (int64_t i = width; i < PANEL; i++) packed[i] = 0.0f;
        }
    }
    return packed;
}

/* The results of a tile: C = start + A·B, for one panel of B. `start` may be C itself, a bias (stride 0), or NULL for 0. */
INLINE void tile(int rows, const float *a, int64_t by_row, int64_t by_k, const float *b, int64_t depth,
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
            for (int v = 0; v < TILE_VECTORS; v++) sum[m][v] = fma_(left, right[v], sum[m][v]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++) store(c + m * c_stride + v * LANES, sum[m][v]);
}

/* One panel for at most TILE_ROWS rows, of which `width` columns exist. */
INLINE void part_of_panel(int64_t rows, int64_t width, const float *a, int64_t by_row, int64_t by_k, const float *b,
                          int64_t depth, const float *start, int64_t start_stride, float *c, int64_t c_stride) {
    float copy[TILE_ROWS * PANEL], *out = c;
    int64_t out_stride = c_stride;
    if (width < PANEL) { /* compute in a copy with all columns */
        out = copy, out_stride = PANEL;
        memset(copy, 0, sizeof copy);
        for (int64_t m = 0; start && m < rows; m++) memcpy(copy + m * PANEL, start + m * start_stride, 4 * (size_t)width);
        start = copy, start_stride = PANEL;
    }
    switch (rows) { /* `tile` with a constant number of rows, whose loops the compiler unrolls */
#define ROWS(n) case n: if (n <= TILE_ROWS) tile(n, a, by_row, by_k, b, depth, start, start_stride, out, out_stride); break;
        ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#undef ROWS
    }
    for (int64_t m = 0; out == copy && m < rows; m++) memcpy(c + m * c_stride, copy + m * PANEL, 4 * (size_t)width);
}

/* C [rows, columns] = start + A·B with packed B. A has its rows in `a`, the inputs of a row are adjacent. */
static void multiply(Rows a, int64_t rows, const float *packed, int64_t depth, int64_t columns, const float *start,
                     int64_t start_stride, Rows c) {
    int64_t k = 0;
    do { /* at least once, because a product without inputs is `start` */
        int64_t inputs = depth - k < BLOCK ? depth - k : BLOCK;
        for (int64_t first = 0; first < rows; first += ROW_BLOCK) {
            int64_t end = first + ROW_BLOCK < rows ? first + ROW_BLOCK : rows;
            for (int64_t n = 0; n < columns; n += PANEL) {
                int64_t tiles = (end - first + TILE_ROWS - 1) / TILE_ROWS;
                for (int64_t m = first, count; m < end; m += count, tiles--) {
                    count = (end - m + tiles - 1) / tiles; /* tiles of nearly equal height have the longest chains */
                    float *out = c.at + m * c.stride + n;
                    const float *from = k ? out : start ? start + m * start_stride + n : NULL;
                    part_of_panel(count, columns - n, a.at + m * a.stride + k, a.stride, 1,
                                  packed + n * depth + k * PANEL, inputs, from, k ? c.stride : start_stride, out,
                                  c.stride);
                }
            }
        }
        k += BLOCK;
    } while (k < depth);
}

/* C [m, n] = Aᵀ·B, summed over some rows of A [rows, m] and B [rows, n] in the order of `chosen` [count]. `scratch` has
 * room for ROWS_AT_ONCE rows of B. */
static void multiply_transposed(Rows a, Rows b, const int64_t *chosen, int64_t rows, int64_t m_count, int64_t n_count,
                                float *c, float *scratch) {
    if (!rows) memset(c, 0, 4 * (size_t)(m_count * n_count));
    float left[GROUP][ROWS_AT_ONCE * TILE_ROWS];
    for (int64_t k = 0; k < rows; k += ROWS_AT_ONCE, chosen += ROWS_AT_ONCE) {
        int64_t depth = rows - k < ROWS_AT_ONCE ? rows - k : ROWS_AT_ONCE;
        for (int64_t i = 0; i < depth; i++) {
            const float *row = b.at + chosen[i] * b.stride;
            for (int64_t n = 0; n < n_count; n += PANEL) {
                float *packed = scratch + n * depth + i * PANEL;
                if (n_count - n >= PANEL) {
                    memcpy(packed, row + n, 4 * PANEL);
                } else {
                    memset(packed, 0, 4 * PANEL);
                    memcpy(packed, row + n, 4 * (size_t)(n_count - n));
                }
            }
        }
        for (int64_t first = 0; first < m_count; first += GROUP * TILE_ROWS) {
            int64_t end = first + GROUP * TILE_ROWS < m_count ? first + GROUP * TILE_ROWS : m_count;
            for (int64_t i = 0; i < depth; i++) /* whole cache lines of A are read once */
                for (int64_t m = first; m < end; m += TILE_ROWS) {
                    const float *from = a.at + chosen[i] * a.stride + m;
                    float *to = left[(m - first) / TILE_ROWS] + i * TILE_ROWS;
                    if (end - m >= TILE_ROWS)
                        memcpy(to, from, 4 * TILE_ROWS);
                    else
                        memcpy(to, from, 4 * (size_t)(end - m));
                }
            for (int64_t n = 0; n < n_count; n += PANEL)
                for (int64_t m = first; m < end; m += TILE_ROWS) {
                    float *out = c + m * n_count + n;
                    part_of_panel(end - m < TILE_ROWS ? end - m : TILE_ROWS, n_count - n, left[(m - first) / TILE_ROWS],
                                  1, TILE_ROWS, scratch + n * depth, depth, k ? out : NULL, n_count, out, n_count);
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
static void gradients(const Batch *batch, Rows by_y, Rows x, int64_t m, int64_t n, float *weight, float *bias,
                      float *scratch) {
    for (int64_t s = 0; s < batch->shards; s++) {
        const int64_t *chosen = batch->order + batch->bounds[s], rows = batch->bounds[s + 1] - batch->bounds[s];
        int64_t offset = (batch->first_shard + s) * batch->gradient_stride;
        multiply_transposed(by_y, x, chosen, rows, m, n, weight + offset, scratch);
        if (bias) sum_rows(by_y, chosen, rows, m, bias + offset);
    }
}
