/** Which version of the site this is: the build puts it here; empty where nothing was built. */

export const VERSION = "";
