"""bough.guard"""
