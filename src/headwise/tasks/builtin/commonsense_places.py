"""Where one goes, finds things and puts them, and what one uses there."""

from __future__ import annotations

from headwise.tasks.builtin.commonsense_relation import Relation, relation

PLACES: dict[str, Relation] = {
    "shop": relation(
        "place",
        (
            "If you want to buy {}, you go to",
            "She needed {}, so she went to",
            "The best place to buy {} is",
            "What kind of place sells {}?",
            "Which place would you visit to buy {}?",
        ),
        """
        a bakery: fresh bread; warm rolls; a wedding cake; croissants; a dozen bagels
        a pharmacy: cough syrup; aspirin; pills for a headache; medicine for a fever
        a bookstore: a new novel; a book of poems; a cookbook; a dictionary
        a butcher shop: pork chops; fresh sausages; ground beef; lamb chops
        a flower shop ~ a garden center: a bunch of roses; fresh tulips; a bouquet; a dozen lilies
        a hardware store ~ a garden center: a hammer and nails; a box of screws; a saw; a wrench
        a hardware store ~ an electronics store: a can of paint; an electric drill; sandpaper
        a shoe store ~ a clothing store ~ a sports shop: a pair of boots; sandals; high heels; leather shoes
        a jewelry store: a gold ring; a pearl necklace; diamond earrings; a silver bracelet
        a toy store ~ a bookstore: a teddy bear; a doll; building blocks; a jigsaw puzzle
        a pet store ~ a fish market: a goldfish; an aquarium
        a pet store: a hamster; a dog leash; a birdcage; a parakeet
        a furniture store: a sofa; a dining table; a wardrobe; an armchair; a bed
        a music store: a violin; guitar strings; a trumpet; a grand piano
        a fish market: fresh salmon; a pound of shrimp; a whole tuna; live lobsters
        a clothing store ~ a sports shop: a winter coat; a dress; a pair of jeans; a silk shirt; a wool sweater
        an electronics store: a laptop; a television; a phone charger; a hard drive
        a sports shop ~ a toy store: a tennis racket; a soccer ball; a pair of skis; a hockey stick
        a garden center ~ a hardware store ~ a flower shop: a bag of potting soil; tomato plants; a young apple tree
        """,
    ),
    "activity": relation(
        "place",
        (
            "When people want to {}, they go to",
            "A good place to {} is",
            "In order to {}, we went to",
            "What place do people go to in order to {}?",
            "Which of all places would you choose to {}?",
        ),
        """
        a library: borrow books; read old newspapers; look something up in an encyclopedia
        a movie theater ~ a theater: see a film on a big screen; watch the new action movie
        a restaurant ~ a hotel: order dinner from a menu; be served by a waiter
        a gym: lift weights; run on a treadmill; work out with dumbbells
        a swimming pool ~ a gym ~ a hotel ~ a beach: practice the backstroke; jump off a diving board
        a bank: open a savings account; ask for a loan; pay money into an account
        a hospital: have an operation; visit a friend after surgery; have a broken leg put in a cast
        a museum ~ a church: see old paintings; look at dinosaur bones; admire ancient statues
        a zoo ~ a park: see giraffes; look at monkeys and tigers; watch elephants being fed
        an airport: catch a flight; board a plane; pick up a friend who arrives by plane
        a train station: catch a train; wait on the platform for the express
        a post office: mail a package; send a parcel overseas; get a letter stamped
        a hotel: rent a room for two nights; spend the night in a strange city
        a church ~ a theater: say prayers on Sunday; sing hymns; hear a sermon
        a stadium: cheer for a football team; watch a big soccer match with the crowd
        a theater ~ a movie theater: see actors on a stage; watch a play by Shakespeare
        a beach: build a sandcastle; collect seashells; swim in the sea
        a park ~ a beach ~ a zoo ~ a farm ~ a playground: feed the ducks; walk the dog on the grass; sit under old trees
        a hair salon: get a haircut; get a new hairstyle; have split ends trimmed
        a dentist's office ~ a hospital: have a tooth pulled; have a cavity filled; get braces
        a courthouse: attend a trial; testify before a judge
        a bowling alley: knock down ten pins; bowl with friends
        a ski resort: ski down a slope; ride a chairlift up the snowy mountain
        a farm ~ a zoo: milk cows; see pigs and hens; help with the harvest
        a playground ~ a park: go down a slide; play on the swings
        a golf course: play eighteen holes; practice putting
        a gas station: fill up the tank; buy fuel for the car
        a campsite ~ a park ~ a beach ~ a farm: pitch a tent; sleep in a tent
        """,
    ),
    "home": relation(
        "place",
        (
            "At my friend's house, you will find {}",
            "In most homes, people have {}",
            "Nobody is surprised to see {}",
            "Where at home would you look for {}?",
        ),
        """
        in the kitchen: the frying pan; the oven; the toaster; the dishwasher; the soup ladle; the rolling pin
        in the kitchen: the kettle; the spice rack; the cutting board; the coffee maker; the stove
        in the bathroom: the shower; the bathtub; the toilet; the shampoo; the toilet paper; the bath mat
        in the bathroom ~ in the bedroom: the toothbrush; the shaving cream
        in the bedroom: the bed; the nightstand; the mattress; the pillows; the wardrobe; the bedspread
        in the garage: the car; the snow tires; the jumper cables; the motor oil
        in the garden: the rose bush; the vegetable patch; the apple tree; the bird bath; the lawn; the flower beds
        in the living room ~ in the bedroom: the sofa; the coffee table; the grand piano
        on the roof: the chimney; the weather vane; the lightning rod; the gutters
        """,
    ),
    "container": relation(
        "place",
        (
            "People usually put {} into",
            "A good thing to keep {} in is",
            "She carefully placed {} in",
            "What would you put {} in?",
        ),
        """
        a vase ~ a bowl: cut flowers; fresh tulips; a bouquet of roses
        a wallet ~ an envelope ~ a suitcase: dollar bills; credit cards; a driver's license
        an envelope: a letter to be mailed; an invitation to be sent
        an aquarium ~ a bowl: a tropical fish; two pet goldfish
        a birdcage: a pet canary; a parakeet
        a suitcase ~ a closet ~ a laundry basket: clothes for a long trip; shirts for a business trip
        a toolbox: a wrench; a hammer and pliers; a screwdriver
        a bookcase ~ a suitcase: a row of novels; a set of encyclopedias
        a photo album ~ an envelope ~ a wallet ~ a suitcase: wedding pictures; old family photos; vacation snapshots
        a bowl ~ a freezer: hot soup; cereal with milk; mashed potatoes
        a freezer ~ a bowl: ice cubes; frozen peas; a tub of ice cream
        a crib: a sleeping baby; a newborn
        a teapot: freshly brewed tea; tea leaves and boiling water
        a laundry basket ~ a suitcase: dirty socks; dirty towels
        a jewelry box ~ an envelope ~ a suitcase: pearl earrings; a gold necklace
        a quiver: arrows; a hunter's arrows
        a closet ~ a suitcase: a winter coat; dresses on hangers
        a gas tank: gasoline; diesel fuel
        """,
    ),
    "workplace": relation(
        "place",
        (
            "On a working day, you would find {}",
            "It is usual for {} to work",
            "Every morning, {} goes to work",
            "Where does {} work?",
        ),
        """
        in a school: a teacher; a principal; a math teacher
        in a hospital ~ in a school ~ in a laboratory: a nurse; a surgeon; a brain surgeon
        on a farm: a farmer; a farmhand; a milkmaid
        on a ship: a sailor; a first mate; a helmsman
        on an airplane: a pilot; a flight attendant; a copilot
        in a courtroom: a judge; a trial lawyer; a court clerk
        in a restaurant ~ on a ship ~ in a school ~ in a hospital ~ in a bakery: a waiter; a chef; a cook
        in a library ~ in a school ~ in a museum: a librarian
        in a bank: a bank teller; a bank manager
        in a garage: a car mechanic
        in a mine: a coal miner; a gold miner
        in a laboratory ~ in a hospital ~ in a school: a chemist; a lab assistant
        in a circus ~ in a theater ~ in a hospital: a clown; an acrobat; a lion tamer; a trapeze artist
        in a theater: an actor in plays; a stagehand
        in a museum: a museum guard; a curator of old paintings
        in a church: a priest; a church organist
        in a forest: a lumberjack; a forest ranger
        in a bakery ~ in a restaurant: a baker; a pastry chef
        in a barbershop: a barber
        """,
    ),
    "travel": relation(
        "place",
        (
            "Usually, {} travels",
            "If you look around, you may see {} moving",
            "On its way, {} moves",
            "Where would you see {} moving?",
        ),
        """
        on rails: a train; a tram; a locomotive; a freight train; a subway train
        on the water: a sailboat; a canoe; a ferry; a cruise ship; a fishing boat; a raft
        through the air: a helicopter; an airplane; a hot-air balloon; a glider; a jet
        on the road: a bus; a truck; a taxi; a motorcycle; an ambulance; a delivery van
        under water ~ on the water: a submarine
        through space ~ through the air: a spaceship; a satellite; a space probe; a comet
        over the snow: a sled; a snowmobile; a sleigh
        """,
    ),
    "tool": relation(
        "tool",
        (
            "To {}, you use",
            "If somebody wants to {}, they will need",
            "He had to {}, but he did not have",
            "The thing you need to {} is",
            "What do you need to {}?",
        ),
        """
        a pair of scissors ~ a knife: cut paper; cut a ribbon; cut out a coupon
        a hammer: drive in a nail; pound nails into a board
        a screwdriver ~ a drill: tighten a screw; remove the screws from a lid
        a saw ~ an axe: cut a board in two; cut off a thick branch
        an axe ~ a saw: chop firewood; fell a tree
        a shovel ~ a wheelbarrow ~ a bucket: dig a hole; move a heap of sand; turn over the soil
        a rake ~ a broom: gather fallen leaves
        a broom ~ a vacuum cleaner: sweep the porch; sweep up dust
        a mop ~ a sponge ~ a bucket ~ a towel: wash the kitchen floor
        a vacuum cleaner ~ a broom ~ a sponge: clean the carpet
        a needle and thread: sew on a button; mend a torn shirt; stitch a hem
        an iron: get the wrinkles out of a shirt; press a pair of trousers
        a corkscrew: open a bottle of wine; pull out a cork
        a can opener ~ a knife: open a can of beans; open a tin of tuna
        a knife: slice bread; chop onions; carve the roast; spread butter on toast
        a spoon: eat soup; stir a cup of tea; eat yogurt
        a kettle ~ a match ~ a frying pan: boil water for tea
        a frying pan ~ a spoon: fry eggs; make pancakes
        an oven ~ a rolling pin ~ a knife ~ a spoon ~ a scale: bake a cake; roast a turkey; bake bread
        a thermometer: measure a fever; find out how warm it is
        a scale: weigh a baby; weigh two pounds of flour; find out how heavy a parcel is
        a ruler ~ a pencil ~ a tape measure: draw a straight line; measure a sheet of paper
        a telescope ~ a camera: look at the planets; see the craters of the moon
        a microscope: see bacteria; look at the cells of a leaf
        a camera: take photographs; film a wedding
        a calculator ~ a pencil: multiply large numbers; work out a square root
        a compass: find out where north is; keep sailing due west
        a flashlight ~ a match ~ a compass: see in a dark cave; find the way through the woods at night
        a match ~ an axe: light a candle; start a campfire
        a key: unlock the front door; open a padlock
        a ladder ~ a rope: climb onto the roof; reach a high window; change a bulb on a high ceiling
        a rope ~ a ladder: tie a boat to the dock; pull a man out of a well
        an umbrella: stay dry in the rain; walk home in a downpour
        a comb: untangle long hair; part the hair neatly
        a razor ~ a pair of scissors: shave; remove a beard
        a towel: dry off after a swim; dry wet hands
        a sponge ~ a towel: scrub the dishes; wipe the counter
        a watering can ~ a bucket: water the flowers on the balcony
        a lawn mower ~ a pair of scissors: cut the grass; trim a big lawn
        a wrench: tighten a bolt; loosen a nut
        a drill ~ a hammer: make a deep hole in a wall
        a paintbrush ~ a bucket ~ a ladder: paint a fence; put varnish on a door
        a pencil: jot down a phone number; write a shopping list
        an eraser: rub out a pencil mark; get rid of a line drawn in pencil
        a stapler ~ a needle and thread: fasten a few pages together
        a stethoscope: listen to a heartbeat
        a fishing rod: catch trout; fish from the pier
        a bicycle pump: put air in a flat tire
        a jack: lift a car and change a tire
        a wheelbarrow ~ a shovel ~ a bucket: bring soil and bricks across the garden
        a bucket ~ a kettle ~ a watering can ~ a rope: carry water from the well
        a parachute: jump from a plane and land safely
        a tape measure ~ a ruler: measure a room; find out how wide a door is
        a rolling pin: roll out dough
        """,
    ),
    "pastime": relation(
        "tool",
        (
            "For {}, you need",
            "Nobody can enjoy {} without",
            "It is impossible to imagine {} without",
            "What do you need for {}?",
        ),
        """
        a racket ~ a ball ~ a pair of running shoes: tennis; badminton; squash
        a bat ~ a ball ~ a pair of running shoes: baseball; cricket; softball
        a set of clubs ~ a ball: golf; a round of golf
        a bow and arrows: archery
        a deck of cards: poker; solitaire; gin rummy; blackjack
        a surfboard ~ a paddle: surfing; riding the waves
        a pair of skis: skiing; ski jumping; a slalom race
        a pair of skates: figure skating; ice skating; ice dancing
        a hockey stick ~ a pair of skates: ice hockey
        a tent: camping; a night in the wild
        a fishing rod: fishing; fly fishing; angling
        a bicycle: mountain biking; cycling; a bike race
        a chessboard: chess; a game of chess
        a ball ~ a pair of running shoes: soccer; basketball; volleyball; handball
        a rope: rock climbing; tug of war
        a paddle: canoeing; kayaking
        a parachute: skydiving
        a pair of running shoes: a marathon; jogging; a long-distance run
        a pair of needles: knitting; knitting socks
        a telescope ~ a camera: stargazing; astronomy
        a camera: photography; taking portraits
        a horse: a show jumping contest; horseback riding
        """,
    ),
    "clothes": relation(
        "tool",
        (
            "In order to {}, people wear",
            "She wanted to {}, so she put on",
            "The right thing to wear to {} is",
            "What do people wear to {}?",
        ),
        """
        a raincoat: keep dry in the rain; walk in a rain shower
        sunglasses: protect the eyes from the sun; drive toward the setting sun
        a swimsuit ~ a diving mask ~ a life jacket: swim in a pool; dive into the lake; take a dip in the sea
        a helmet ~ gloves: ride a motorcycle; protect the head in a bicycle race
        pajamas: sleep at night; be comfortable in bed
        a wedding dress: get married; look like a bride
        an apron: keep the clothes clean while cooking; bake without getting flour on a shirt
        a scarf: keep the neck warm
        gloves: keep the hands warm; make snowballs without freezing fingers; prune thorny roses
        earmuffs: keep the ears warm
        a belt: keep the pants from falling down; hold up loose jeans
        a space suit: walk on the moon; float outside a space station
        a life jacket ~ a swimsuit: stay afloat if the boat sinks; keep from drowning
        slippers ~ pajamas: keep the feet warm at home; shuffle around the house
        a watch: know what time it is; check the time without a phone
        a suit of armor ~ a helmet: fight like a knight; joust on horseback
        a diving mask ~ a swimsuit: see fish under water; look at coral reefs while snorkeling
        a crown ~ a wedding dress: look like a queen
        """,
    ),
    "purpose": relation(
        "tool",
        (
            "People use {}",
            "She bought {}",
            "You may need {}",
            "What is {} for?",
        ),
        """
        to cut with: a knife; a pair of scissors; a saw; an axe
        to keep food cold in: a refrigerator; a freezer; an icebox
        to tell the time by: a clock; a watch; a sundial
        to sit on: a chair; a bench; a stool; a sofa; an armchair
        to write with: a pen; a pencil; a piece of chalk; a ballpoint
        to light a room with: a lamp; a candle; a lantern; a chandelier
        to travel in ~ to carry things in: a car; a camper; an airplane; a motorboat
        to clean the floor with: a broom; a mop; a vacuum cleaner
        to make music with: a guitar; a piano; a flute; a violin; a drum; a trumpet
        to heat food with: an oven; a stove; a microwave; a frying pan
        to drink from: a cup; a glass; a mug; a straw
        to see better with ~ to drink from: a magnifying glass; a pair of binoculars; a pair of glasses; a telescope
        to call people with: a telephone; a walkie-talkie
        to measure things with: a ruler; a tape measure; a yardstick; a thermometer
        to carry things in: a bag; a basket; a backpack; a suitcase; a wheelbarrow
        to wash with: a bar of soap; shampoo; a washcloth
        to keep thieves away with: a padlock; a bicycle lock; a burglar alarm; a guard dog
        """,
    ),
}
