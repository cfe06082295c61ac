// Of every slice of neighbouring tokens the largest logit, the sum of e^(logit - largest), and the
// lowest id that has the largest; a thread a slice.
override N: u32;
override SLICES: u32;
override SLICE: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= SLICES) { return; }
  let first = id.x * SLICE;
  let end = min(first + SLICE, N);
  var top = -3.4e38;
  var at = min(first, N - 1u);
  for (var i = first; i < end; i++) {
    if (logits[i] > top) {
      top = logits[i];
      at = i;
    }
  }
  var mass = 0.0;
  for (var i = first; i < end; i++) { mass += exp(logits[i] - top); }
  slices[id.x] = vec4<f32>(top, mass, 0.0, bitcast<f32>(at));
}
