// Two values to one: a sum (0), the larger (1), the smaller (2) or a product (3).
const SUM = 0u;
const LARGER = 1u;
const SMALLER = 2u;
const PRODUCT = 3u;

fn fold(a: f32, b: f32, how: u32) -> f32 {
  switch how {
    case LARGER: { return max(a, b); }
    case SMALLER: { return min(a, b); }
    case PRODUCT: { return a * b; }
    default: { return a + b; }
  }
}

// What changes nothing.
fn neutral(how: u32) -> f32 {
  switch how {
    case LARGER: { return -3.4028234e38; }
    case SMALLER: { return 3.4028234e38; }
    case PRODUCT: { return 1.0; }
    default: { return 0.0; }
  }
}
