// What changes from step to step of one sequence; the sampler advances it on the GPU.
struct Step {
  position: u32,     // of the first token of this step
  num_tokens: u32,   // in this step
  num_sampled: u32,  // ids written to `sampled` so far
  seed: u32,
  temperature: f32,  // 0: greedy
}
