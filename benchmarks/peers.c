// One round of clipped sums of users' average logistic gradients, as one writes it by hand: `peers.py` compiles it.
#include <math.h>
#include <stdint.h>

// Adds to total (d) over k users: all of them, or those that `cohort` names, of m items of d features each.
void clipped_sum(const float *features, const float *labels, const int64_t *cohort, int64_t k, int64_t m, int64_t d,
                 const float *model, float clip, float *total) {
#pragma omp parallel
    {
        float row[d], own[d];
        for (int64_t j = 0; j < d; j++) own[j] = 0;
#pragma omp for nowait
        for (int64_t i = 0; i < k; i++) {
            int64_t user = cohort ? cohort[i] : i;
            const float *item = features + user * m * d;
            for (int64_t j = 0; j < d; j++) row[j] = 0;
            for (int64_t t = 0; t < m; t++, item += d) {
                float score = 0, label = labels[user * m + t];
#pragma omp simd reduction(+ : score)
                for (int64_t j = 0; j < d; j++) score += item[j] * model[j];
                float slope = -label / (1 + expf(label * score)) / m;
                for (int64_t j = 0; j < d; j++) row[j] += slope * item[j];
            }
            float square = 1e-30f;
#pragma omp simd reduction(+ : square)
            for (int64_t j = 0; j < d; j++) square += row[j] * row[j];
            float factor = fminf(1, clip / sqrtf(square));
            for (int64_t j = 0; j < d; j++) own[j] += factor * row[j];
        }
#pragma omp critical
        for (int64_t j = 0; j < d; j++) total[j] += own[j];
    }
}
