// Logits as a request wants them: repetition penalty (Keskar et al., 2019) for tokens of prompt and
// answer, presence and frequency penalties for those of the answer, bias, and LOWEST for tokens
// that may not come. A thread a slice of neighbouring tokens, of which it also says the largest
// logit z, the sum of e^((z - largest) / T), and the best score with the id that has it.
override N: u32;
override SLICES: u32;
override SLICE: u32;
const IN_PROMPT = 0x80000000u;

fn adjust(i: u32) -> f32 {
  if (sampling.masked == 1u && ((mask[i / 32u] >> (i % 32u)) & 1u) == 0u) { return LOWEST; }
  var z = logits[i];
  let seen = counts[i];
  let count = seen & ~IN_PROMPT;
  if (seen != 0u) { z = select(z * sampling.repetition, z / sampling.repetition, z > 0.0); }
  if (count > 0u) { z -= sampling.presence + sampling.frequency * f32(count); }
  return z + bias[i];
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= SLICES) { return; }
  let first = id.x * SLICE;
  let end = min(first + SLICE, N);
  var top = LOWEST;
  var best = LOWEST;
  var choice = min(first, N - 1u);
  for (var i = first; i < end; i++) {
    let z = adjust(i);
    adjusted[i] = z;
    top = max(top, z);
    let s = score(z, i);
    if (z > LOWEST && s > best) {
      best = s;
      choice = i;
    }
  }
  var mass = 0.0;
  for (var i = first; i < end; i++) { mass += exp((adjusted[i] - top) * scale()); }
  slices[id.x] = vec4<f32>(top, mass, best, bitcast<f32>(choice));
}
