// y = FUNCTION(a, b, c) by elements, each with strides of its own: a thread an element. Elements
// are f32 or, if INTEGER, i32; the numbers of the functions are those of engine/ops/elementwise.py.
override FUNCTION: u32;
override INTEGER: u32;
override COUNT: u32;
override Y_AT: i32;
override Y0: i32;
override Y1: i32;
override Y2: i32;
override Y3: i32;
override Y4: i32;
override Y5: i32;

fn truth(value: bool) -> u32 { return select(0u, 1u, value); }

fn power(x: f32, exponent: f32) -> f32 {
  // pow is undefined for a negative base, where whole exponents have a result.
  if (exponent == 0.0) { return 1.0; }
  let size = pow(abs(x), exponent);
  return select(size, -size, x < 0.0 && abs(exponent) % 2.0 == 1.0);
}

fn tanh_of(x: f32) -> f32 { return tanh(clamp(x, -15.0, 15.0)); }  // some drivers overflow

fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp(-x)); }

fn of_floats(x: f32, y: f32) -> f32 {
  switch FUNCTION {
    case 1u: { return -x; }
    case 2u: { return abs(x); }
    case 3u: { return sqrt(x); }
    case 4u: { return exp(x); }
    case 5u: { return log(x); }
    case 6u: { return erf(x); }
    case 7u: { return tanh_of(x); }
    case 8u: { return sigmoid(x); }
    case 9u: { return max(x, 0.0); }
    case 10u: { return 0.5 * x * (1.0 + erf(x * 0.70710678)); }
    case 11u: { return 0.5 * x * (1.0 + tanh_of(0.79788456 * (x + 0.044715 * x * x * x))); }
    case 12u: { return x * sigmoid(x); }
    case 13u: { return sine(x, 1); }
    case 14u: { return sine(x, 0); }
    case 15u: { return floor(x); }
    case 16u: { return ceil(x); }
    case 17u: { return 1.0 / x; }
    case 18u: { return sign(x); }
    case 30u: { return x + y; }
    case 31u: { return x - y; }
    case 32u: { return x * y; }
    case 33u: { return x / y; }
    case 34u: { return power(x, y); }
    case 35u: { return min(x, y); }
    case 36u: { return max(x, y); }
    case 37u: { return x - floor(x / y) * y; }
    default: { return x; }
  }
}

fn of_integers(x: i32, y: i32) -> i32 {
  switch FUNCTION {
    case 1u: { return -x; }
    case 2u: { return abs(x); }
    case 9u: { return max(x, 0); }
    case 18u: { return sign(x); }
    case 30u: { return x + y; }
    case 31u: { return x - y; }
    case 32u: { return x * y; }
    case 33u: { return x / y; }
    case 34u: { return i32(round(power(f32(x), f32(y)))); }
    case 35u: { return min(x, y); }
    case 36u: { return max(x, y); }
    case 37u: { return ((x % y) + y) % y; }
    default: { return x; }
  }
}

fn compared(order: i32) -> bool {  // of x and y, by the sign of x - y
  switch FUNCTION {
    case 40u: { return order == 0; }
    case 41u: { return order < 0; }
    case 42u: { return order <= 0; }
    case 43u: { return order > 0; }
    default: { return order >= 0; }
  }
}

fn result(at: Index) -> u32 {
  let a_bits = a_of(at);
  let b_bits = b_of(at);
  let x = bitcast<f32>(a_bits);
  let y = bitcast<f32>(b_bits);
  let i = bitcast<i32>(a_bits);
  let j = bitcast<i32>(b_bits);
  switch FUNCTION {
    case 0u: { return a_bits; }
    case 19u: { return truth(a_bits == 0u); }
    case 20u: {
      if (INTEGER == 1u) { return truth(a_bits != 0u); }
      return truth(x != 0.0);
    }
    case 21u: { return bitcast<u32>(f32(i)); }
    case 22u: { return bitcast<u32>(i32(x)); }
    case 23u: { return truth((a_bits & 0x7fffffffu) > 0x7f800000u); }
    case 40u, 41u, 42u, 43u, 44u: {
      if (INTEGER == 1u) { return truth(compared(select(0, 1, i > j) - select(0, 1, i < j))); }
      return truth(compared(select(0, 1, x > y) - select(0, 1, x < y)));
    }
    case 45u: { return truth(a_bits != 0u && b_bits != 0u); }
    case 46u: { return truth(a_bits != 0u || b_bits != 0u); }
    case 47u: { return truth((a_bits != 0u) != (b_bits != 0u)); }
    case 50u: { return select(c_of(at), b_bits, a_bits != 0u); }
    default: {
      if (INTEGER == 1u) { return bitcast<u32>(of_integers(i, j)); }
      return bitcast<u32>(of_floats(x, y));
    }
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let element = (group.y * groups.x + group.x) * WORKGROUP + lane;
  if (element >= COUNT) { return; }
  let at = index_of(element);
  y[place(at, vec3<i32>(Y0, Y1, Y2), vec3<i32>(Y3, Y4, Y5), Y_AT)] = result(at);
}
