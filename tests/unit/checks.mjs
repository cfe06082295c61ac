// Checks that go on where one has failed; test_checks_in_node.py reads the report.

const problems = [];
let tried = 0;

/** @param {string} name @param {() => unknown} test */
export async function check(name, test) {
  tried++;
  try {
    await test();
  } catch (error) {
    problems.push(`${name}: ${error.message.split("\n")[0]}`);
  }
}

/** Prints the problems, a line each, then how much was tried. */
export function report() {
  for (const problem of problems) console.log(problem);
  console.log(tried);
}
