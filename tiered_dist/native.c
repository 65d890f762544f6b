/* The one pass of Gradient Threshold Compression that touches every element: add the weighted
 * gradient to the residual and find what has reached the threshold. A block of elements without
 * any, nearly all of them at the densities that pay, costs no more than the addition. The
 * compiler vectorises the first loop; the clone that fits the processor is chosen at run time. */
#include <math.h>
#include <stdint.h>

#define BLOCK 64

#if defined(__x86_64__) && defined(__linux__)
#define FOR_EVERY_PROCESSOR \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

/* residual += weight * gradient, both (n); writes the ascending positions with
 * |residual| >= tau to found (n) and the residual there to values (n), while it is still in the
 * cache, and returns how many they are. */
FOR_EVERY_PROCESSOR
int64_t accumulate(float *restrict residual, const float *restrict gradient, float weight,
                   float tau, int64_t n, int32_t *restrict found, float *restrict values)
{
    int64_t count = 0, i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        int any = 0;
        for (int j = 0; j < BLOCK; j++) {
            float value = residual[i + j] + weight * gradient[i + j];
            residual[i + j] = value;
            any |= fabsf(value) >= tau;
        }
        if (any)
            for (int j = 0; j < BLOCK; j++) {
                found[count] = (int32_t)(i + j);
                values[count] = residual[i + j];
                count += fabsf(residual[i + j]) >= tau;
            }
    }
    for (; i < n; i++) {
        residual[i] += weight * gradient[i];
        found[count] = (int32_t)i;
        values[count] = residual[i];
        count += fabsf(residual[i]) >= tau;
    }
    return count;
}
