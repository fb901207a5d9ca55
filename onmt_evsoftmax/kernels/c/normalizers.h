/* THE TABLE of the normalizers that have row kernels. Dispatch, checks, Python's numbers and the
 * tests are made from it. To add one: its line in SLOPED, and its header, `rows_NAME.h`:
 *
 *     enum { NAME_needs_sum,          1: the sum of a row's entries is read with its maximum
 *            NAME_needs_room,         1: `candidates`, scratch space for every row, is needed
 *            NAME_unit_slopes,        1: the slopes of a row always sum to 1
 *            NAME_keeps_equal };      1: what equals the threshold is in the support (float64)
 *     #define NAME_range {least, most}  of its parameter; 0, its default, is always taken
 *     where LANES is defined (float32 in vectors; half precision arrives as float32):
 *         void NAME_group(group, support, candidates, room);   forward
 *         vf NAME_slope(vf p);         s of the Jacobian diag(s) - s s' / sum(s)
 *         (entmax, whose slopes depend on alpha, has a function for the whole row instead)
 *     and for attention, of normalizers that are projections, f(max((x - max) / reach - tau, 0)):
 *         NAME_reach                   how far below the maximum the support can be; INFINITY
 *         Sum NAME_tile_tau(tile); double NAME_row_tau(d, vectors);   tau, of rows together or alone
 *         vf NAME_projected(vf u), NAME_projected_slope(vf u);        f, and the slope, from u
 *     where it is not (float64, one entry at a time):
 *         double NAME_row(x, mask, n, max, parameter, p);    returns the threshold of x - max
 *         double NAME_slope(double p, double parameter);
 */
#ifndef NORMALIZERS
/* Those whose slope is a function of the probability alone. */
#define SLOPED(X) \
    X(evsoftmax) \
    X(sparsemax) \
    X(entmax15)

#define NORMALIZERS(X) \
    SLOPED(X) \
    X(entmax)

/* Those that are projections. */
#define PROJECTIONS(X) \
    X(sparsemax) \
    X(entmax15)

#define NUMBER(name) id_##name,
enum { NORMALIZERS(NUMBER) NORMALIZER_COUNT };
#endif

#if defined(WITH_ROW_CODE)
#include "rows_evsoftmax.h"
#include "rows_sparsemax.h"
#include "rows_entmax15.h"
#include "rows_entmax.h"

/* One function for each property of a normalizer; with a constant number, a constant. */
#define PROPERTY(property) \
    static inline __attribute__((always_inline, unused)) int property(int normalizer) { \
        switch (normalizer) { NORMALIZERS(PROPERTY_##property) } \
        return 0; \
    }
#define PROPERTY_needs_sum(name) case id_##name: return name##_needs_sum;
#define PROPERTY_needs_room(name) case id_##name: return name##_needs_room;
#define PROPERTY_unit_slopes(name) case id_##name: return name##_unit_slopes;
#define PROPERTY_keeps_equal(name) case id_##name: return name##_keeps_equal;
PROPERTY(needs_sum)
PROPERTY(needs_room)
PROPERTY(unit_slopes)
PROPERTY(keeps_equal)

#if defined(LANES)
INLINE float reach(int normalizer) {
#define REACH(name) case id_##name: return name##_reach;
    switch (normalizer) { PROJECTIONS(REACH) }
    return INFINITY;
}

INLINE Sum tile_tau(int normalizer, const Tile *t) {
#define TILE_TAU(name) case id_##name: return name##_tile_tau(t);
    switch (normalizer) { PROJECTIONS(TILE_TAU) }
    return (Sum){{0}, {0}};
}

INLINE double row_tau(int normalizer, const float *d, int64_t vectors) {
#define ROW_TAU(name) case id_##name: return name##_row_tau(d, vectors);
    switch (normalizer) { PROJECTIONS(ROW_TAU) }
    return 0;
}

INLINE vf projected(int normalizer, vf u) {
#define PROJECTED(name) case id_##name: return name##_projected(u);
    switch (normalizer) { PROJECTIONS(PROJECTED) }
    return u;
}

INLINE vf projected_slope(int normalizer, vf u) {
#define PROJECTED_SLOPE(name) case id_##name: return name##_projected_slope(u);
    switch (normalizer) { PROJECTIONS(PROJECTED_SLOPE) }
    return u;
}
#endif
#endif
