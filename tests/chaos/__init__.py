"""Kill, starve and damage FineSight on purpose, and see that what it leaves is right: ``make chaos``."""
