/* Initial weights: orthonormal columns, with the same bits on each processor. */
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
