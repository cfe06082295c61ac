// Logits as a request wants them: repetition penalty (Keskar et al., 2019) for tokens of prompt and
// answer, presence and frequency penalties for those of the answer, bias, and LOWEST for tokens
// that may not come; a thread a token.
override N: u32;
const IN_PROMPT = 0x80000000u;
const LOWEST = -1.0e30;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= N) { return; }
  var z = logits[i];
  let seen = counts[i];
  let count = seen & ~IN_PROMPT;
  if (seen != 0u) { z = select(z * sampling.repetition, z / sampling.repetition, z > 0.0); }
  if (count > 0u) { z -= sampling.presence + sampling.frequency * f32(count); }
  z += bias[i];
  let allowed = sampling.masked == 0u || ((mask[i / 32u] >> (i % 32u)) & 1u) == 1u;
  adjusted[i] = select(LOWEST, z, allowed);
}
