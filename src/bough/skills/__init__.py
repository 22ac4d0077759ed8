"""bough.skills"""
