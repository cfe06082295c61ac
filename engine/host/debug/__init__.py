"""`debug`: a prompt call by call on a device, beside the references of its plans."""
