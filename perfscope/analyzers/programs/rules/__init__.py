"""Rules on compiled programs: donation, callbacks, collectives and repeated work."""
