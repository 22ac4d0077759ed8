"""bough.agents.models"""
