/* Grade results with the frozen test set, unpacked by gunzip:
 *
 *     cc -O2 grade.c -o grade -ljansson -lm
 *     ./grade refgeo-vectors-1.json results.json [single]
 *
 * The results are {case: {value: number or rows}}. The folder's README.md describes both files, and what is wrong.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RIGHT, WRONG, NOT_JUDGED, MISSING, MOST_ENTRIES = 4096, MOST_ROWS = 256 };
typedef struct { char label[96], first[192]; int counts[4]; double digits; } Row;

static json_t *load(const char *file) {
    json_error_t error;
    json_t *found = json_load_file(file, 0, &error);
    if (!found) { fprintf(stderr, "%s: %s\n", file, error.text); exit(2); }
    return found;
}

/* The numbers of nested lists, or of numbers in text; and how many there are. */
static int flat(const json_t *value, double *entries, int count) {
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) count = flat(json_array_get(value, i), entries, count);
        return count;
    }
    if (count < MOST_ENTRIES)
        entries[count] = json_is_string(value) ? strtod(json_string_value(value), NULL)
                         : json_is_number(value) ? json_number_value(value) : NAN;
    return count + 1;
}

static int judge(const json_t *expected, const json_t *result, double roundoff, double *digits, char *said) {
    static double exact[MOST_ENTRIES], got[MOST_ENTRIES];
    if (!result) return MISSING;
    double largest = 0, off = 0;
    int count = flat(json_object_get(expected, "mid"), exact, 0), given = flat(result, got, 0);
    for (int i = 0; i < count; i++) largest = fmax(largest, fabs(exact[i]));
    if (largest == 0) largest = 1;
    if (given != count) {
        *digits = 0;
        sprintf(said, "expected %d numbers, got %d", count, given);
        return WRONG;
    }
    const json_t *unit = json_object_get(expected, "unit");
    double allowed = json_is_number(unit) ? 1000 * json_number_value(unit) * roundoff / 0x1p-53 : INFINITY;
    if (allowed > 0.1 * largest) return NOT_JUDGED;
    for (int i = 0; i < count; i++) off = fmax(off, isfinite(got[i]) ? fabs(got[i] - exact[i]) : INFINITY);
    *digits = fmin(*digits, fmax(0, -log10(off / largest)));
    sprintf(said, "off by %.2g, allowed are %.2g", off, allowed);
    return off <= strtod(json_string_value(json_object_get(expected, "rad")), NULL) + allowed ? RIGHT : WRONG;
}

static Row *row_of(Row *rows, int *used, const json_t *one, const char *name) {
    const char *which = json_string_value(json_object_get(one, json_object_get(one, "metric") ? "metric" : "network"));
    int length = (int)strlen(name);
    if (length > 2 && (!strcmp(name + length - 2, "_G") || !strcmp(name + length - 2, "_H"))) length -= 2;
    char label[96];
    snprintf(label, sizeof label, "%s %.*s %s", json_string_value(json_object_get(one, "kind")), length, name, which);
    for (int i = 0; i < *used; i++) if (!strcmp(rows[i].label, label)) return rows + i;
    if (*used == MOST_ROWS) { fprintf(stderr, "more than %d values\n", MOST_ROWS); exit(2); }
    Row *row = rows + (*used)++;
    *row = (Row){.digits = 16};
    strcpy(row->label, label);
    return row;
}

static int by_label(const void *a, const void *b) { return strcmp(((const Row *)a)->label, ((const Row *)b)->label); }

int main(int count, char **arguments) {
    if (count < 3 || count > 4 || (count == 4 && strcmp(arguments[3], "single"))) {
        fprintf(stderr, "usage: grade refgeo-vectors-1.json results.json [single]\n");
        return 2;
    }
    json_t *cases = json_object_get(load(arguments[1]), "cases"), *results = load(arguments[2]);
    double roundoff = count == 4 ? 0x1p-24 : 0x1p-53;
    char said[96];
    const char *name, *value;
    json_t *one, *expected;
    json_object_foreach(results, name, one) json_object_foreach(one, value, expected)
        if (!json_object_get(json_object_get(json_object_get(cases, name), "values"), value)) {
            fprintf(stderr, "unknown: %s %s\n", name, value);
            return 2;
        }
    static Row rows[MOST_ROWS];
    int used = 0, right = 0, wrong = 0;
    json_object_foreach(cases, name, one) json_object_foreach(json_object_get(one, "values"), value, expected) {
        Row *row = row_of(rows, &used, one, value);
        const json_t *result = json_object_get(json_object_get(results, name), value);
        int verdict = judge(expected, result, roundoff, &row->digits, said);
        if (verdict == WRONG && !row->counts[WRONG])
            snprintf(row->first, sizeof row->first, "%.40s %.40s: %s", name, value, said);
        row->counts[verdict]++;
    }
    qsort(rows, used, sizeof *rows, by_label);
    printf("%-44s right wrong not judged missing digits\n", "value");
    for (int i = 0; i < used; i++) {
        int *n = rows[i].counts;
        if (n[RIGHT] + n[WRONG] + n[NOT_JUDGED])
            printf("%-44s %5d %5d %10d %7d ", rows[i].label, n[RIGHT], n[WRONG], n[NOT_JUDGED], n[MISSING]);
        if (n[RIGHT] + n[WRONG]) printf("%6.1f\n", rows[i].digits);
        else if (n[NOT_JUDGED]) printf("     -\n");
        right += n[RIGHT];
    }
    for (int i = 0; i < used; i++)
        if (rows[i].counts[WRONG]) printf("wrong: %s\n", rows[i].first);
    for (int i = 0; i < used; i++)
        if (rows[i].counts[WRONG]) printf("%s%s", wrong++ ? ", " : "WRONG: ", rows[i].label);
    if (wrong) { printf("\n"); return 1; }
    if (!right) { printf("No array could be judged.\n"); return 2; }
    printf("All %d judged arrays are right.\n", right);
    return 0;
}
