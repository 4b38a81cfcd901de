/* Two of the functions in plain C, from a folder made by: refgeo vectors write DIR --format json
 *
 *     cc -O2 validation/backends/other_languages/solve.c -o solve -ljansson -lm
 *     ./solve DIR/inputs.json results.json
 *     refgeo vectors grade DIR results.json
 *
 * The inner product and the Riemannian gradient, by Cholesky; the rest is reported as not provided.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int rows, columns; double *at; } Matrix;

static Matrix matrix(int rows, int columns) {
    Matrix A = {rows, columns, calloc((size_t)rows * columns, sizeof(double))};
    if (!A.at) { fprintf(stderr, "out of memory\n"); exit(2); }
    return A;
}
#define AT(A, i, j) (A).at[(size_t)(i) * (A).columns + (j)]

static json_t *get(const json_t *inputs, const char *name, const char *value) {
    char key[128];
    snprintf(key, sizeof key, "%s__%s", name, value);
    json_t *found = json_object_get(inputs, key);
    if (!found) { fprintf(stderr, "%s is not in the inputs\n", key); exit(2); }
    return found;
}

static Matrix read_matrix(const json_t *inputs, const char *name, const char *value) {
    const json_t *rows = get(inputs, name, value);
    Matrix A = matrix((int)json_array_size(rows), (int)json_array_size(json_array_get(rows, 0)));
    for (int i = 0; i < A.rows; i++)
        for (int j = 0; j < A.columns; j++) AT(A, i, j) = json_number_value(json_array_get(json_array_get(rows, i), j));
    return A;
}

static void write_matrix(json_t *results, const char *name, const char *value, Matrix A) {
    char key[128];
    json_t *rows = json_array();
    for (int i = 0; i < A.rows; i++) {
        json_t *row = json_array();
        for (int j = 0; j < A.columns; j++) json_array_append_new(row, json_real(AT(A, i, j)));
        json_array_append_new(rows, row);
    }
    snprintf(key, sizeof key, "%s__%s", name, value);
    json_object_set_new(results, key, rows);
}

/* AᵀB */
static Matrix cross(Matrix A, Matrix B) {
    Matrix C = matrix(A.columns, B.columns);
    for (int k = 0; k < A.rows; k++)
        for (int i = 0; i < A.columns; i++)
            for (int j = 0; j < B.columns; j++) AT(C, i, j) += AT(A, k, i) * AT(B, k, j);
    return C;
}

static Matrix product(Matrix A, Matrix B) {
    Matrix C = matrix(A.rows, B.columns);
    for (int i = 0; i < A.rows; i++)
        for (int k = 0; k < A.columns; k++)
            for (int j = 0; j < B.columns; j++) AT(C, i, j) += AT(A, i, k) * AT(B, k, j);
    return C;
}

/* S⁻¹ of a symmetric positive matrix: LLᵀ = S, then L⁻¹, then L⁻ᵀL⁻¹ */
static Matrix inverse(Matrix S) {
    int h = S.rows;
    Matrix L = matrix(h, h), M = matrix(h, h);
    for (int j = 0; j < h; j++)
        for (int i = j; i < h; i++) {
            double sum = AT(S, i, j);
            for (int k = 0; k < j; k++) sum -= AT(L, i, k) * AT(L, j, k);
            AT(L, i, j) = i == j ? sqrt(sum) : sum / AT(L, j, j);
        }
    for (int j = 0; j < h; j++)
        for (int i = j; i < h; i++) {
            double sum = i == j;
            for (int k = j; k < i; k++) sum -= AT(L, i, k) * AT(M, k, j);
            AT(M, i, j) = sum / AT(L, i, i);
        }
    return cross(M, M);
}

/* tr(W aᵀb), W symmetric */
static double weighted(Matrix W, Matrix a, Matrix b) {
    Matrix C = cross(a, b);
    double sum = 0;
    for (int i = 0; i < W.rows; i++)
        for (int j = 0; j < W.columns; j++) sum += AT(W, i, j) * AT(C, j, i);
    return sum;
}

int main(int count, char **arguments) {
    if (count != 3) { fprintf(stderr, "usage: solve inputs.json results.json\n"); return 2; }
    json_error_t error;
    json_t *inputs = json_load_file(arguments[1], 0, &error), *results = json_object();
    if (!inputs) { fprintf(stderr, "%s: %s\n", arguments[1], error.text); return 2; }
    size_t k;
    json_t *entry;
    json_array_foreach(json_object_get(inputs, "cases"), k, entry) {
        const char *name = json_string_value(entry);
        int inv = !strcmp(json_string_value(get(inputs, name, "metric")), "inv");
        Matrix G = read_matrix(inputs, name, "G"), H = read_matrix(inputs, name, "H");
        Matrix S = cross(G, G), T = cross(H, H);
        Matrix W_G = inv ? inverse(S) : T, W_H = inv ? inverse(T) : S;     /* the metric */
        Matrix V_G = inv ? S : inverse(T), V_H = inv ? T : inverse(S);     /* its inverse */
        char key[128];
        snprintf(key, sizeof key, "%s__inner_product", name);
        double value = weighted(W_G, read_matrix(inputs, name, "a_G"), read_matrix(inputs, name, "b_G")) +
                       weighted(W_H, read_matrix(inputs, name, "a_H"), read_matrix(inputs, name, "b_H"));
        json_object_set_new(results, key, json_real(value));
        write_matrix(results, name, "riemannian_gradient_G", product(read_matrix(inputs, name, "e_G"), V_G));
        write_matrix(results, name, "riemannian_gradient_H", product(read_matrix(inputs, name, "e_H"), V_H));
    }
    return json_dump_file(results, arguments[2], JSON_REAL_PRECISION(17)) ? 2 : 0;
}
