"""bough.execution"""
