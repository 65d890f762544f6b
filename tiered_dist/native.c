/* What Gradient Threshold Compression does with every element of the model, and with every entry
 * of a message. */
#include <math.h>
#include <stdint.h>

#define BLOCK 64

/* -D FOR_EVERY_PROCESSOR= leaves the choice to the compiler's -march. */
#if defined(FOR_EVERY_PROCESSOR)
#elif defined(__x86_64__) && defined(__linux__)
#define FOR_EVERY_PROCESSOR \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

/* The one pass that touches every element: add the weighted gradient to the residual and find what
 * has reached the threshold. A block of elements without any, nearly all of them at the densities
 * that pay, costs no more than the addition. The compiler vectorises the first loop; the clone that
 * fits the processor is chosen at run time.
 *
 * residual += weight * gradient, both (n); writes the ascending positions with
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

/* Where an entry points, and what it adds there. */
typedef struct {
    int64_t position;
    int32_t sign;
} entry;

/* Walks through the entries of one message's body, in either form of entries.py. */
typedef struct {
    const int32_t *words;
    const uint16_t *halves; /* of the short form: a count each stretch, then the entries */
    int64_t stretches, stretch, left, next;
} walk;

static walk begin(const int32_t *body, int64_t stretches)
{
    const uint16_t *halves = (const uint16_t *)body;
    return (walk){body, halves, stretches, 0, stretches ? halves[0] : 0, 0};
}

static entry next(walk *at)
{
    int64_t number = at->next++;
    if (at->stretches == 0) {
        int32_t word = at->words[number];
        return (entry){word >> 1, 1 - ((word & 1) << 1)};
    }
    while (at->left == 0 && at->stretch + 1 < at->stretches)
        at->left = at->halves[++at->stretch];
    at->left--;
    int32_t half = at->halves[at->stretches + number];
    return (entry){(at->stretch << 15) + (half >> 1), 1 - ((half & 1) << 1)};
}

/* out[position] = (sum of the signs of all workers' entries there) * values[parameter], where
 * out (n) holds zeros, parameter p ends before ends[p], and scratch (n) holds zeros and is left so.
 * Worker w has counts[w] entries in the words from bodies + w * stride on; stretches is 0 for the
 * 32-bit form. A body has so many words. Returns 0, or 1 where one is none of such a model: then
 * nothing was written. */
int32_t decode(const int32_t *bodies, int64_t stride, int64_t words, const int64_t *counts,
               int64_t workers, int64_t stretches, const int64_t *ends, const float *values, int64_t n,
               int32_t *restrict scratch, float *restrict out)
{
    for (int64_t w = 0; w < workers; w++) {
        int64_t room = stretches ? 2 * words - stretches : words;
        if (counts[w] < 0 || counts[w] > room)
            return 1;
        walk at = begin(bodies + w * stride, stretches);
        int64_t told = stretches ? 0 : counts[w];
        for (int64_t s = 0; s < stretches; s++)
            told += at.halves[s];
        if (told != counts[w])
            return 1;
        for (int64_t i = 0; i < counts[w]; i++) {
            int64_t position = next(&at).position;
            if (position < 0 || position >= n)
                return 1;
        }
    }
    for (int64_t w = 0; w < workers; w++) {
        walk at = begin(bodies + w * stride, stretches);
        for (int64_t i = 0; i < counts[w]; i++) {
            entry e = next(&at);
            scratch[e.position] += e.sign;
        }
    }
    for (int64_t w = 0; w < workers; w++) {
        walk at = begin(bodies + w * stride, stretches);
        int64_t parameter = 0; /* a message's entries ascend, so this seldom moves */
        for (int64_t i = 0; i < counts[w]; i++) {
            int64_t position = next(&at).position;
            while (position >= ends[parameter])
                parameter++;
            while (parameter > 0 && position < ends[parameter - 1])
                parameter--;
            if (scratch[position] != 0)
                out[position] = (float)scratch[position] * values[parameter];
            scratch[position] = 0;
        }
    }
    return 0;
}
