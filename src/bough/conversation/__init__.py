"""bough.conversation"""
