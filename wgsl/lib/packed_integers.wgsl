// A block of 32 weights that are integers with a scale, w = d * q + m, as signed bytes in element
// order.
struct PackedBlock { lo: vec4<u32>, hi: vec4<u32>, scale: Scale }

fn load_packed(i: u32) -> PackedBlock {
  let q = load_quants(i);
  return PackedBlock(q.lo, q.hi, load_scale(i));
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
  return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y)
       + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
