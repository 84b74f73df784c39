"""The native part: one extension module, `rnic._nic.nic`, that holds the C core and its binding."""
