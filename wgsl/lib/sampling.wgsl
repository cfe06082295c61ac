// What an answer asks of the sampler beside seed and temperature.
struct Sampling {
  top_k: u32,  // 0: all tokens
  top_p: f32,
  min_p: f32,
  repetition: f32,
  presence: f32,
  frequency: f32,
  masked: u32,   // whether the mask counts
  num_top: u32,  // likeliest tokens whose log-probabilities are wanted
}
