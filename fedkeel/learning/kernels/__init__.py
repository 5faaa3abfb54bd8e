"""Ways to take local steps that give what the plain loop gives, with less work."""
