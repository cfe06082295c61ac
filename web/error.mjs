/** An error a person can act on; codes are stable. */
export class OctavoError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {string} [hint] what to do; may be empty
   */
  constructor(code, message, hint = "") {
    super(message);
    this.name = "OctavoError";
    this.code = code;
    this.hint = hint;
  }
}
