"""bough.testing"""
