"""bough.agents"""
