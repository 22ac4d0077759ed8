"""bough.cli.commands"""
