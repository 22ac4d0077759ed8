"""Tools that need something of the program: a database, a client, the person who is logged in."""

from dataclasses import dataclass, field

from pydantic_ai import RunContext

from bough import AgentSpec, Conversation


@dataclass
class Shop:
    """What the tools work on."""

    customer: str
    prices: dict[str, float]
    basket: list[str] = field(default_factory=list[str])


def add_to_basket(ctx: RunContext[Shop], item: str) -> str:
    """Put an item into the customer's basket."""
    ctx.deps.basket.append(item)
    return f"{item}: {ctx.deps.prices[item]:.2f} EUR"


shop = Shop(customer="Ada", prices={"tea": 4.5, "cake": 3.25})
clerk = AgentSpec(name="clerk", model="openai:gpt-5", tools=[add_to_basket], deps=shop)

with Conversation(clerk, title=f"basket of {shop.customer}") as conversation:
    conversation.send_message("A tea and a cake, please.")
    print(conversation.run().output)

print("basket:", ", ".join(shop.basket), sum(shop.prices[item] for item in shop.basket))
