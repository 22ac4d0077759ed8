"""bough.cli"""
