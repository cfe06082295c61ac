// The chosen token is the next step's input; the sequence moves on by the step's tokens.
override RING: u32;

fn advance(choice: u32) {
  tokens[0] = choice;
  sampled[step.num_sampled % RING] = choice;
  step.num_sampled += 1u;
  step.position += step.num_tokens;
  step.num_tokens = 1u;
}
