/* Everything that is compiled once per instruction set. The including file says LANES, VARIANT (the
 * name of its table) and, where it may, USE_AVX2 or USE_AVX512. */
#include <stdlib.h>

#include "kernels.h"
#include "simd.h"
#include "transpose.h"
#include "rows.h"
#include "attention_pack.h"
#include "attention_tile.h"
#include "attention_forward.h"
#include "attention_backward.h"
#include "attention_lists.h"
#include "attention_distances.h"
#include "attention_blocks.h"
#include "attention_blocks_backward.h"
#include "attention_single.h"

const Variant VARIANT = {
    VARIANT_NAME, rows_forward, rows_backward, attention_forward, attention_backward,
    blocks_forward, blocks_backward, single_forward,
};
