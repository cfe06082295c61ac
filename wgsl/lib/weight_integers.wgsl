// A block of 32 weights that are integers with a scale, w = d * q + m, as eight vec4 in element
// order.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn load_block(i: u32) -> Block {
  let q = load_quants(i);
  let scale = load_scale(i);
  return Block(array<vec4<f32>, 8>(floats(q.lo.x), floats(q.lo.y), floats(q.lo.z), floats(q.lo.w),
                                   floats(q.hi.x), floats(q.hi.y), floats(q.hi.z), floats(q.hi.w)),
               scale.x, scale.y);
}
