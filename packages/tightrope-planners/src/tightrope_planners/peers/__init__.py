"""Published methods, one file each; the registry imports a method when it is asked for."""
