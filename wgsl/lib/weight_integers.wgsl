// A block of 32 weights that are integers with a scale, w = d * q + m, as eight vec4 in element
// order. A byte of any quants is at most 127, and so may be read as signed.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn load_block(i: u32) -> Block {
  let q = load_quants(i);
  let scale = load_scale(i);
  return Block(array<vec4<f32>, 8>(
    vec4<f32>(unpack4xI8(q.lo.x)), vec4<f32>(unpack4xI8(q.lo.y)),
    vec4<f32>(unpack4xI8(q.lo.z)), vec4<f32>(unpack4xI8(q.lo.w)),
    vec4<f32>(unpack4xI8(q.hi.x)), vec4<f32>(unpack4xI8(q.hi.y)),
    vec4<f32>(unpack4xI8(q.hi.z)), vec4<f32>(unpack4xI8(q.hi.w))), scale.x, scale.y);
}
