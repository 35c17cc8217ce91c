/* Functions in float64 whose results are the same on each processor, because they consist of operations that IEEE 754
 * rounds, in a fixed order. */
#include <math.h>
#include <stdint.h>

/* Replace the columns of A [rows, columns], with rows >= columns, by orthonormal ones that span the same spaces, from the
 * first to the last: the Q of A = Q·R with a positive diagonal of R (modified Gram-Schmidt). A sum takes the rows in
 * ascending order. `products` is temporary memory [columns]. */
void orthonormalize(double *a, int64_t rows, int64_t columns, double *products) {
    for (int64_t k = 0; k < columns; k++) {
        for (int64_t j = k; j < columns; j++) products[j] = 0.0;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = k; j < columns; j++) products[j] += a[i * columns + k] * a[i * columns + j];
        double length = sqrt(products[k]);
        for (int64_t j = k + 1; j < columns; j++) products[j] /= products[k];
        for (int64_t i = 0; i < rows; i++) {
            double *row = a + i * columns, own = row[k];
            for (int64_t j = k + 1; j < columns; j++) row[j] -= own * products[j];
            row[k] = own / length;
        }
    }
}

/* x rounded to an integer, for |x| < 2⁵¹ */
static double nearest(double x) { return x + 6755399441055744.0 - 6755399441055744.0; }

/* exp, for x < 700: x = n·ln 2 + r, and 13 terms of the series of exp(r) */
static double exponential(double x) {
    double n = nearest(x * 1.4426950408889634), sum = 1.0;
    double r = x - n * 0.6931471803691238 - n * 1.9082149292705877e-10;
    for (int k = 13; k > 0; k--) sum = 1.0 + sum * r / k;
    return ldexp(sum, (int)n);
}

/* sin and cos, for |x| < 10⁶: x = n·π/2 + r, and the series up to r¹⁷ */
static void sine_and_cosine(double x, double *sine, double *cosine) {
    double n = nearest(x * 0.6366197723675814), s = 1.0, c = 1.0;
    double r = x - n * 1.5707963267341256 - n * 6.077100506506192e-11;
    for (int k = 16; k > 0; k -= 2) {
        c = 1.0 - c * r * r / (k * (k - 1));
        s = 1.0 - s * r * r / (k * (k + 1));
    }
    s *= r;
    switch ((int64_t)n & 3) {
        case 0: *sine = s, *cosine = c; break;
        case 1: *sine = c, *cosine = -s; break;
        case 2: *sine = -s, *cosine = -c; break;
        case 3: *sine = -c, *cosine = s; break;
    }
}

/* The factors of a layer `lru`: Re λ, Im λ, and γ, [H] each, with λ = exp(−exp(log_decay) + i·exp(log_phase)) and
 * γ = √(1 − |λ|²). `derivatives` has their derivatives with respect to log_decay, and of the first two with respect to
 * log_phase, [5, H]. */
void lru_factors(const float *log_decay, const float *log_phase, int64_t H, float *factors, float *derivatives) {
    for (int64_t u = 0; u < H; u++) {
        double decay = exponential(log_decay[u]), phase = exponential(log_phase[u]), size = exponential(-decay);
        /* For very slow decays, |λ|² rounds to 1 or nearly 1, so 1 − |λ|² would be 0 or inexact. */
        double square = decay < 1e-6 ? 2.0 * decay * (1.0 - decay) : 1.0 - size * size;
        double sine, cosine, gamma = sqrt(square);
        sine_and_cosine(phase, &sine, &cosine);
        double real = size * cosine, imaginary = size * sine;
        factors[u] = (float)real, factors[H + u] = (float)imaginary, factors[2 * H + u] = (float)gamma;
        derivatives[u] = (float)(-decay * real);
        derivatives[H + u] = (float)(-decay * imaginary);
        derivatives[2 * H + u] = (float)(decay * size * size / gamma);
        derivatives[3 * H + u] = (float)(-phase * imaginary);
        derivatives[4 * H + u] = (float)(phase * real);
    }
}

/* Merge n batches of samples into a mean and a sum of squared deviations [size], in order (Chan, Golub, LeVeque 1979):
 * M2 = M2a + M2b + δ²·na·nb/(na+nb). `counts` [n] are the sizes of the batches, and `moments` [n, 2, size] their means and
 * sums of squared deviations. Return the number of all samples. */
double merge_moments(double count, double *mean, double *m2, const int64_t *counts, const double *moments, int64_t n,
                     int64_t size) {
    for (int64_t i = 0; i < n; i++, moments += 2 * size) {
        if (counts[i] == 0) continue;
        double own = (double)counts[i], total = count + own, share = own / total, weight = count * own / total;
        for (int64_t j = 0; j < size; j++) {
            double delta = moments[j] - mean[j];
            mean[j] += delta * share;
            m2[j] = m2[j] + moments[size + j] + delta * delta * weight;
        }
        count = total;
    }
    return count;
}
