// A block of 32 weights that are integers with a scale, w = d * q + m, as signed bytes in element
// order.
struct PackedBlock { lo: vec4<u32>, hi: vec4<u32>, d: f32, m: f32 }

fn load_packed(i: u32) -> PackedBlock {
  let q = load_quants(i);
  let scale = load_scale(i);
  return PackedBlock(q.lo, q.hi, scale.x, scale.y);
}
