"""bough.events"""
